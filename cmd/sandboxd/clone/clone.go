// Package clone copies a git repository of this machine into a sandbox, and the commits that are
// made there back. It runs the git of this machine and the git of the sandbox, which talk over the
// SSH connection of an agent.Client.
//
// The sandbox is untrusted. Its output is bounded, and what is printed of it is printable text.
// Its hooks, configuration and attributes have no effect on this machine.
//
// The package knows no command line. It stores which sandbox has a clone in a directory of files.
package clone

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sandbox runs commands in a sandbox. *agent.Client implements it.
type Sandbox interface {
	Exec(ctx context.Context, cmd agent.Cmd) (agent.Exit, error)
}

// Clone is a repository of this machine and its copy in a sandbox.
type Clone struct {
	Sandbox    string   `json:"sandbox"`    // name of the sandbox
	ID         string   `json:"id"`         // ID of the sandbox
	Repository string   `json:"repository"` // work tree on this machine
	Dir        string   `json:"dir"`        // work tree in the sandbox
	Branch     string   `json:"branch"`     // the branch that is checked out there at first
	Base       string   `json:"base"`       // the commit that the branch begins at
	Wip        bool     `json:"wip"`        // Base has the changes that were not committed here
	Included   []string `json:"included"`   // untracked files that were copied
	// where the branches of another sandbox of the name are now; empty if there were none
	Former string `json:"former,omitempty"`
	// name of the coding agent that works in the clone; empty without
	Agent string `json:"agent,omitempty"`
	// file that describes the agent; empty if it is a built-in one
	AgentFile string `json:"agent_file,omitempty"`
	// the agent runs without a terminal, and prints its answer
	Prints bool `json:"prints,omitempty"`
	// name of the sandboxes that began together, each with the same task; empty for one alone
	Group string `json:"group,omitempty"`
	Check string `json:"check,omitempty"` // shell command that tests the work; empty without
	// how Check ended when it ran last; nil if it did not run
	Checked *CheckResult `json:"checked,omitempty"`
}

// CheckResult is how a command that tests the work ended.
type CheckResult struct {
	ExitCode int       `json:"exit_code"`
	LastLine string    `json:"last_line"`   // of its output
	At       time.Time `json:"at,omitzero"` // when it ended; zero in records of earlier versions
}

// oldestGit is the first version with all options that the package uses.
var oldestGit = [2]int{2, 31}

// settings override the configuration of the user for each run of git: no hooks, no background
// work, and no programs that the configuration names. Another fetch may set the same refs: git
// waits up to 10 s for it.
var settings = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.askPass=", "credential.helper=",
	"gc.auto=0", "maintenance.auto=false", "submodule.recurse=false", "protocol.version=2",
	"protocol.fd.allow=always", "color.ui=never",
	"core.filesRefLockTimeout=10000", "core.packedRefsTimeout=10000",
}

// keptVariables are the variables of git that the caller's environment may set. Others could select
// another repository, or name programs.
var keptVariables = map[string]bool{
	"GIT_CONFIG_GLOBAL": true, "GIT_CONFIG_SYSTEM": true, "GIT_CONFIG_NOSYSTEM": true,
	"GIT_EXEC_PATH": true, "GIT_CEILING_DIRECTORIES": true,
	"GIT_AUTHOR_NAME": true, "GIT_AUTHOR_EMAIL": true,
	"GIT_COMMITTER_NAME": true, "GIT_COMMITTER_EMAIL": true,
}

// repository is a repository of this machine.
type repository struct{ dir string }

// call has the options of one run of git.
type call struct {
	env    []string   // added variables
	stdin  string     // empty is no input
	files  []*os.File // descriptors 3, 4, …; closed once git has started, or has failed to
	output int        // the longest output in bytes; 0 means 1 MiB
}

// Bounds of git's output on this machine.
const (
	maxGitOutput = 1 << 20
	maxGitErrors = 16 << 10
)

// gitError is a run of git that failed.
type gitError struct {
	verb   string
	code   int    // exit status; −1 after a signal
	errors string // beginning of standard error, as printable text of several lines
}

// Error returns the last lines that git printed, on one line.
func (e *gitError) Error() string {
	said := lastWords(e.errors)
	if said == "" {
		said = fmt.Sprintf("exit status %d", e.code)
	}
	return "git " + e.verb + ": " + said
}

// lastWords returns the messages at the end of git's standard error on one line, without hints and
// with what git prints in front of them.
func lastWords(errors string) string {
	var said []string
	for line := range strings.Lines(errors) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "hint: ") {
			continue
		}
		line = strings.TrimPrefix(strings.TrimPrefix(line, "fatal: "), "error: ")
		said = append(said, line)
	}
	return text.End(strings.Join(said[max(0, len(said)-4):], "; "), 600)
}

// git runs git in the repository and returns its standard output.
func (r repository) git(ctx context.Context, args ...string) ([]byte, error) {
	return r.call(ctx, call{}, args...)
}

// line is git for output of one line, which it returns without the newline.
func (r repository) line(ctx context.Context, args ...string) (string, error) {
	out, err := r.git(ctx, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

// call runs git in the repository. An exit status other than 0 is a *gitError. When ctx ends, git
// receives SIGTERM.
func (r repository) call(ctx context.Context, o call, args ...string) ([]byte, error) {
	most := o.output
	if most == 0 {
		most = maxGitOutput
	}
	out := &text.Head{Limit: most}
	if err := r.run(ctx, o, out, args...); err != nil {
		return nil, err
	}
	if out.Cut {
		return nil, fmt.Errorf("git %s: more than %s of output", verb(args), size(int64(most)))
	}
	return out.Bytes(), nil
}

// run is call for output of any length, which it writes to out.
func (r repository) run(ctx context.Context, o call, out io.Writer, args ...string) error {
	words := []string{"-C", r.dir}
	for _, s := range settings {
		words = append(words, "-c", s)
	}
	cmd := exec.CommandContext(ctx, "git", append(words, args...)...)
	said := &text.Head{Limit: maxGitErrors}
	cmd.Stdout, cmd.Stderr = out, said
	if o.stdin != "" {
		cmd.Stdin = strings.NewReader(o.stdin)
	}
	cmd.Env = append(environment(), o.env...)
	cmd.ExtraFiles = o.files
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Start()
	for _, f := range o.files {
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("git: %w", err)
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && !cmd.ProcessState.Success():
		return &gitError{verb: verb(args), code: cmd.ProcessState.ExitCode(),
			errors: text.Lines(said.String())}
	case err != nil:
		return fmt.Errorf("git %s: %w", verb(args), err)
	}
	return nil
}

// verb returns the command in the arguments of git.
func verb(args []string) string {
	for len(args) > 2 && args[0] == "-c" {
		args = args[2:]
	}
	return args[0]
}

// environment returns the variables of the caller with which git runs.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "GIT_") && name != "LANGUAGE" || keptVariables[name] {
			env = append(env, kv)
		}
	}
	return append(env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0",
		"GIT_NO_REPLACE_OBJECTS=1", "GIT_PAGER=cat")
}

// checkGit returns an error unless this machine has a git that is new enough.
func checkGit(ctx context.Context) error {
	if _, err := exec.LookPath("git"); err != nil {
		return &wire.Error{Code: wire.CodeUnavailable, Message: "git: not found on this machine",
			Hint: "install git"}
	}
	out, err := (repository{"/"}).line(ctx, "version")
	if err != nil {
		return err
	}
	if v, ok := gitVersion(out); ok && (v[0] < oldestGit[0] ||
		v[0] == oldestGit[0] && v[1] < oldestGit[1]) {
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("%s on this machine is too old", text.Line(out, 60)),
			Hint:    fmt.Sprintf("install git %d.%d or later", oldestGit[0], oldestGit[1])}
	}
	return nil
}

// gitVersion parses "git version 2.39.5 (…)".
func gitVersion(s string) (v [2]int, ok bool) {
	s, ok = strings.CutPrefix(s, "git version ")
	parts := strings.SplitN(s, ".", 3)
	if !ok || len(parts) < 2 {
		return v, false
	}
	var errs [2]error
	v[0], errs[0] = strconv.Atoi(parts[0])
	v[1], errs[1] = strconv.Atoi(strings.TrimSpace(parts[1]))
	return v, errs[0] == nil && errs[1] == nil
}

// maxTips bounds the commits that git may tell the sandbox of. More only save traffic.
const maxTips = 256

// commits returns those of objects that the repository has as commits, each once, at most maxTips.
func (r repository) commits(ctx context.Context, objects []string) ([]string, error) {
	slices.Sort(objects)
	objects = slices.Compact(objects)
	out, err := r.call(ctx, call{stdin: strings.Join(objects, "\n") + "\n", output: maxListing},
		"cat-file", "--batch-check=%(objectname) %(objecttype)")
	var some []string
	for line := range strings.Lines(string(out)) {
		object, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind == "commit" && len(some) < maxTips {
			some = append(some, object)
		}
	}
	return some, err
}

// fields splits output whose records end with a zero byte.
func fields(out []byte) []string {
	if len(out) == 0 {
		return nil
	}
	return strings.Split(string(bytes.TrimSuffix(out, []byte{0})), "\x00")
}

// isObject reports whether s is the whole name of an object, of SHA-1 or SHA-256.
func isObject(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}
