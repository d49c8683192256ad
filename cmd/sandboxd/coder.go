package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/adrg/xdg"
	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// coderSession is the session in which a coding agent runs.
const coderSession = "agent"

// coder is one invocation of the command agent: a coding agent that gets a sandbox.
type coder struct {
	repositories
	agent   *agents.Agent
	prompt  string
	args    []string // of the program
	name    string   // of the sandbox
	version string
	clone   clone.Options
	network string
	allow   []string
	ask     bool // the program asks for permissions
	detach  bool
	count   int    // number of sandboxes
	test    string // command that tests the work
	adding  sync.Mutex
}

// maxCount is how many sandboxes one command starts.
const maxCount = 32

func (c repositories) agentCommand() *cobra.Command {
	var k coder
	var yolo bool
	cmd := &cobra.Command{
		Use:   "agent AGENT [PROMPT] [-- ARG…]",
		Short: "run a coding agent in a sandbox with a clone of this repository",
		Long: "Run a coding agent in a new sandbox, with a clone of the git repository of this\n" +
			"directory, as new --clone makes it.\n\n" +
			"Built-in agents: " + strings.Join(agents.Names(), ", ") +
			". AGENT is also NAME of a\n" +
			"file ~/.config/sandboxd/agents/NAME.yaml, or the path of such a file.\n\n" +
			"The first run installs the program in a sandbox and keeps the result as an\n" +
			"image. The program uses your secret for its API and never holds it: see secret\n" +
			"set. It runs in the session agent, to which the command attaches on a terminal.\n" +
			"PROMPT is typed when the program is ready for it. ARG are arguments of the\n" +
			"program.\n\n" +
			"By default the program does not ask for permissions, because the sandbox limits\n" +
			"what it can do. Its work comes back with sandboxd fetch.",
		Example: "  sandboxd secret set anthropic --from-env ANTHROPIC_API_KEY\n" +
			"  sandboxd agent claude \"fix the failing tests and commit\" -n fix\n" +
			"  sandboxd fetch fix && sandboxd diff fix",
		ValidArgs: agents.Names(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("agent: missing agent", "use "+list(agents.Names())+
					", or the path of a description")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				args, k.args = args[:at], args[at:]
			}
			switch {
			case len(args) == 0 || len(args) > 2:
				return usage("agent: needs an agent and at most one prompt",
					`quote the prompt: sandboxd agent claude "fix the tests"`)
			case k.ask && yolo:
				return usage("agent: --ask and --yolo are mutually exclusive", "omit one of them")
			}
			k.repositories, k.prompt = c, strings.Join(args[1:], "")
			var err error
			if k.agent, err = findAgent(args[0]); err != nil {
				return err
			}
			return untilInterrupt(cmd.Context(), k.run)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&k.name, "name", "n", "", "name of the new sandbox (default: generated)")
	f.StringVar(&k.clone.Base, "base", "", "commit to begin at (default HEAD)")
	f.BoolVar(&k.clone.Dirty, "dirty", false,
		"add a commit with the uncommitted changes of tracked files")
	f.StringArrayVar(&k.clone.Include, "include", nil, "untracked file to copy, too; repeatable")
	f.StringVar(&k.clone.Dir, "clone-dir", "",
		"directory in the sandbox (default: the path of the work tree)")
	f.StringVar(&k.network, "network", "",
		"network: filtered or allowlist (default: key network)")
	f.StringArrayVar(&k.allow, "allow", nil,
		"host that the sandbox may connect to: NAME, *.NAME, address or range; repeatable")
	f.BoolVar(&k.ask, "ask", false, "let the program ask for permissions")
	f.BoolVar(&yolo, "yolo", false, "give the program all permissions in the sandbox (default)")
	f.BoolVarP(&k.detach, "detach", "d", false, "do not attach to the session")
	f.IntVar(&k.count, "count", 1,
		"number of sandboxes, NAME-1, NAME-2 and so on, with the same prompt")
	f.StringVar(&k.test, "check", "",
		"shell command that agent compare runs in the clones to test the work")
	f.StringVar(&k.version, "agent-version", "",
		"version of the program (default: the one in its description)")
	cmd.AddCommand(c.agentListCommand(), c.compareCommand(), c.keepCommand())
	return cmd
}

// list returns words as text: a, b or c.
func list(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// ownAgents is the directory with the descriptions of the user's own agents.
func ownAgents() string { return filepath.Join(xdg.ConfigHome, "sandboxd", "agents") }

// findAgent returns the description of an agent.
func findAgent(name string) (*agents.Agent, error) {
	a, err := agents.Find(name, ownAgents())
	switch {
	case errors.Is(err, agents.ErrUnknown):
		return nil, usage(fmt.Sprintf("agent: unknown agent %q", text.Line(name, 64)),
			"use "+list(agents.Names())+", or the path of a description")
	case err != nil:
		return nil, usage("agent: "+text.Line(err.Error(), 400),
			"see docs/how-to/agents.md for the form of the file")
	}
	return a, nil
}

// run creates the sandboxes and runs the program in each. After an error before the program runs,
// nothing is left of a sandbox.
func (k *coder) run(ctx context.Context) error {
	if err := k.check(); err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	src, err := clone.Open(ctx, dir, k.clone)
	if err != nil {
		return prefixed("agent: ", err)
	}
	host, o, err := k.reach(ctx, true)
	if err != nil {
		return err
	}
	g, err := agent.DialGateway(ctx, "ssh://"+host, o)
	if err != nil {
		return k.notReached(err, host, o)
	}
	defer g.Close()
	if err := k.unused(ctx, g); err != nil {
		return prefixed("agent: ", err)
	}
	bound, err := k.secrets(ctx, g)
	if err != nil {
		return prefixed("agent: ", err)
	}
	image, err := k.image(ctx, g)
	if err != nil {
		return prefixed("agent: install "+k.agent.Title+": ", err)
	}
	if k.count > 1 {
		return k.runGroup(ctx, g, src, image, bound)
	}
	unentered, err := k.runOne(ctx, g, k.name, src, image, bound)
	if err != nil {
		return prefixed("agent: ", err)
	}
	err = unentered
	interrupted := ctx.Err() != nil
	if err != nil && (k.attaches() || interrupted) {
		fmt.Fprintf(os.Stderr, "note: agent: %s\n", text.Line(err.Error(), 400))
	}
	if k.attaches() && !interrupted {
		err = nil
		if attached := k.attach(ctx, k.name+"~"+coderSession); attached != nil {
			err = attached
		}
	}
	fmt.Printf("  to attach:            sandboxd ssh %[1]s~%[2]s\n"+
		"  to get its commits:   sandboxd fetch %[1]s\n"+
		"  to see its changes:   sandboxd diff %[1]s\n"+
		"  to remove it:         sandboxd rm %[1]s\n", k.name, coderSession)
	if err != nil {
		return prefixed("agent: ", err)
	}
	return nil
}

// check checks the flags, and chooses a name if there is none.
func (k *coder) check() error {
	if n := k.network; n == string(sandbox.NetworkNone) || n == string(sandbox.NetworkBridge) {
		return usage("agent: network "+n+" is not supported: the daemon does not carry its "+
			"connections, so it cannot set the secrets", "use filtered or allowlist")
	}
	if strings.ContainsFunc(k.prompt, unicode.IsControl) || !utf8.ValidString(k.prompt) {
		return usage("agent: the prompt has more than one line, or control characters",
			"write one line, or name a file in it that --include copies")
	}
	switch {
	case k.count < 1 || k.count > maxCount:
		return usage(fmt.Sprintf("agent: --count must be 1 to %d", maxCount),
			"start more with a second command")
	case k.count > 1 && k.prompt == "":
		return usage("agent: --count needs a prompt", "the agents get the same one")
	}
	k.name = cmp.Or(k.name, k.agent.Name+"-"+strings.ToLower(rand.Text()[:4]))
	for _, name := range k.names() {
		if _, err := wire.ParseSandbox(name); err != nil {
			return prefixed("agent: ", err)
		}
	}
	return nil
}

// names returns the names of the sandboxes.
func (k *coder) names() []string {
	if k.count == 1 {
		return []string{k.name}
	}
	all := make([]string, k.count)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", k.name, i+1)
	}
	return all
}

// runOne creates the sandbox name and starts the program in it. After an error, nothing is left of
// it. unentered is why the program, which runs, has not got the prompt.
func (k *coder) runOne(ctx context.Context, g *agent.Gateway, name string, src *clone.Source,
	image string, bound []agents.Secret) (unentered, err error) {
	info, err := g.Create(ctx, k.spec(name, src, image, bound))
	if err != nil {
		return nil, err
	}
	client, err := g.Dial(ctx, info.Name)
	var sh *agent.Shell
	if err == nil {
		defer client.Close()
		sh, err = k.begin(ctx, client, src, info, bound)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if left := g.Remove(ctx, info.Name); left != nil {
			fmt.Fprintf(os.Stderr, "note: sandbox %s was not removed: %s\n", info.Name,
				text.Line(left.Error(), 200))
		}
		k.forget(ctx, []agent.Sandbox{info})
		return nil, err
	}
	fmt.Printf("%s: %s in session %s, on a clone of %s\n", info.Name, k.agent.Title, coderSession,
		text.Line(src.Top, 200))
	if k.prompt != "" {
		err = enterPrompt(ctx, sh, k.agent, k.prompt)
	}
	if closed := sh.Close(); err == nil {
		err = closed
	}
	if err != nil { // the program and its questions stay
		err = prefixed("the prompt was not entered: ", err)
	}
	return err, nil
}

// secrets returns those secrets of the agent that each of the sandboxes will use. If the agent
// needs one and none is set, the error has the command that sets it.
func (k *coder) secrets(ctx context.Context, g *agent.Gateway) ([]agents.Secret, error) {
	if len(k.agent.Secrets) == 0 {
		return nil, nil
	}
	out, err := g.Command(ctx, nil, "secret", "ls", "--json")
	if err != nil {
		return nil, err
	}
	var set []secret.Secret
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var s secret.Secret
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("secret ls: %w", err)
		}
		set = append(set, s)
	}
	lacks := "" // the first sandbox without a secret for the last host
	has := func(name, host string) bool {
		return slices.ContainsFunc(set, func(s secret.Secret) bool {
			return (len(s.Sandboxes) == 0 || slices.Contains(s.Sandboxes, name)) &&
				slices.ContainsFunc(s.Bindings,
					func(b secret.Binding) bool { return b.Host == host })
		})
	}
	var bound []agents.Secret
	var missing, commands []string
	for _, s := range k.agent.Secrets {
		names := k.names()
		without := slices.IndexFunc(names, func(name string) bool { return !has(name, s.Host) })
		if without < 0 {
			bound = append(bound, s)
			continue
		}
		lacks = names[without]
		missing = append(missing, s.Host)
		commands = append(commands, "sandboxd secret set "+s.Set)
	}
	if len(bound) == 0 {
		return nil, &wire.Error{Code: wire.CodeNotFound,
			Message: k.agent.Title + " needs a secret for " + list(missing) +
				", and sandbox " + lacks + " would have none",
			Hint: "set it: " + strings.Join(commands, ", or: ")}
	}
	return bound, nil
}

// image returns the image with the program. The first call makes it.
func (k *coder) image(ctx context.Context, g *agent.Gateway) (string, error) {
	setup, err := k.agent.Install(k.version)
	if err != nil {
		return "", &wire.Error{Code: wire.CodeUsage, Message: err.Error()}
	}
	if len(setup) == 0 {
		return "", nil // the default image has it
	}
	words := []string{"prepare", "--json"}
	for _, command := range setup {
		words = append(words, "--setup="+command)
	}
	for _, host := range k.agent.Hosts {
		words = append(words, "--allow="+host)
	}
	progress := shownOn(os.Stderr)
	if isTerminal(os.Stderr) && os.Getenv("TERM") != "dumb" {
		progress = newBars(os.Stderr)
	}
	defer progress.Close()
	out, err := g.Command(ctx, progress, words...)
	if err != nil {
		return "", err
	}
	var made struct{ Image string }
	err = json.Unmarshal(out, &made)
	return made.Image, err
}

// spec returns the specification of the sandbox.
func (k *coder) spec(name string, src *clone.Source, image string,
	bound []agents.Secret) agent.Spec {
	s := agent.Spec{Name: name, Image: image, Allow: k.allow, Workdir: src.Dir,
		Env:   k.agent.Variables(bound),
		About: k.agent.Title + " works on a clone of " + text.Line(src.Top, 200)}
	mode, via, _ := strings.Cut(k.network, "=")
	s.Network, s.Via = sandbox.Network(mode), sandbox.Via(via)
	if s.Network == sandbox.NetworkAllowlist ||
		mode == "" && k.config.Network.Mode == sandbox.NetworkAllowlist {
		s.Allow = slices.Concat(s.Allow, k.agent.Hosts)
	}
	return s
}

// begin clones the repository, writes the files of the agent and starts its program. The caller
// closes the Shell.
func (k *coder) begin(ctx context.Context, client *agent.Client, src *clone.Source,
	info agent.Sandbox, bound []agents.Secret) (*agent.Shell, error) {
	if len(bound) > 0 && len(info.Secrets) == 0 {
		return nil, &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s with network %s cannot use secrets", info.Name,
				info.Network), Hint: "use --network filtered or allowlist"}
	}
	record, err := src.Copy(ctx, info.Name, info.ID, client)
	if err != nil {
		return nil, err
	}
	record.Agent, record.Check = k.agent.Name, k.test
	if k.count > 1 {
		record.Group = k.name
	}
	k.adding.Lock() // git changes its configuration for one caller at a time
	err = k.add(ctx, record)
	k.adding.Unlock()
	if err != nil {
		return nil, err
	}
	files, err := k.agent.Render(src.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := writeInside(ctx, client, f); err != nil {
			return nil, err
		}
	}
	flags := k.agent.Yolo
	if k.ask {
		flags = k.agent.Ask
	}
	start := agent.Start{Argv: slices.Concat(k.agent.Command, flags, k.args), Dir: src.Dir,
		Bare: true}
	if k.attaches() {
		if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil && rows > 1 {
			start.Cols, start.Rows = cols, rows-1 // the last row has the status line
		}
	}
	return client.Attach(ctx, agent.ShellOptions{Session: coderSession, Fresh: true, Start: start})
}

// attaches reports whether the command attaches its terminal to the session.
func (k *coder) attaches() bool {
	return !k.detach && isTerminal(os.Stdin) && isTerminal(os.Stdout)
}

// writeInside writes a file in a sandbox, for its user alone. A path with ~/ is in the home
// directory.
func writeInside(ctx context.Context, client *agent.Client, f agents.File) error {
	path := shellquote.Join(f.Path)
	if rest, ok := strings.CutPrefix(f.Path, "~/"); ok {
		path = `"$HOME"/` + shellquote.Join(rest)
	}
	said := &text.Head{Limit: 1 << 10}
	exit, err := client.Exec(ctx, agent.Cmd{Stdin: strings.NewReader(f.Text), Stderr: said,
		Command: "umask 077; p=" + path + `; mkdir -p -- "${p%/*}" && cat >"$p"`})
	if err == nil && exit.Code != 0 {
		err = &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("write %s in the sandbox: %s", f.Path,
				text.Line(said.String(), 200))}
	}
	return err
}
