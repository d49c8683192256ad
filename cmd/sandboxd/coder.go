package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/coding"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// codingAgent is one invocation of the command agent: a coding agent that gets a sandbox, or
// several.
type codingAgent struct {
	repositories
	agent   *agents.Agent
	prompt  string
	args    []string // of the program
	name    string   // of the sandbox, or of the group
	count   int      // number of sandboxes
	check   string   // command that tests the work
	image   string   // that the program is installed in; empty is the default
	version string
	clone   clone.Options
	network string
	allow   []string
	ask     bool // the program asks for permissions
	detach  bool
	prints  bool // the program runs without a terminal, and prints its answer
	asJSON  bool
}

// launched is what the command prints of a sandbox with --json.
type launched struct {
	Name       string `json:"name"`
	Agent      string `json:"agent"`
	Session    string `json:"session"`
	Repository string `json:"repository"`
	Branch     string `json:"branch"`
	Prompted   bool   `json:"prompted"` // the program has received the prompt
}

// maxCount is how many sandboxes one command starts.
const maxCount = 32

func (c repositories) agentCommand() *cobra.Command {
	var k codingAgent
	var yolo bool
	cmd := &cobra.Command{
		Use:   "agent AGENT [PROMPT] [flags] [-- ARG…]",
		Short: "run a coding agent in a sandbox with a clone of this repository",
		Long: "Run a coding agent in a new sandbox, on a clone of the git repository of this\n" +
			"directory. See sandboxd new --help for --clone.\n\n" +
			"AGENT is a built-in agent (" + strings.Join(agents.Names(), ", ") +
			"),\nNAME for the file ~/.config/sandboxd/agents/NAME.yaml, or the path of such a\n" +
			"file.\n\n" +
			"PROMPT is typed when the program is ready; several lines are pasted. Without\n" +
			"PROMPT, you type it. ARG is an argument of the program, such as --model.\n\n" +
			"The program runs in the session agent. On a terminal, the command attaches to\n" +
			"it. The program uses a secret but cannot read it, such as an API key: set it first\n" +
			"with sandboxd secret set. The first run installs the program and saves an image.\n\n" +
			"The program does not ask for permissions, unless --ask is set.\n\n" +
			"With --print, the program runs without a terminal. Its output is that of the\n" +
			"command, and its exit code, too.\n\n" +
			"When you detach or the program ends, the command fetches the commits. To get\n" +
			"later ones, use sandboxd fetch.",
		Example: "  sandboxd secret set anthropic --from-env ANTHROPIC_API_KEY\n" +
			"  sandboxd agent claude \"fix the failing tests and commit\" -n fix\n" +
			"  sandboxd fetch fix && sandboxd diff fix",
		DisableFlagsInUseLine: true,
		ValidArgs:             agents.Names(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("agent: missing agent", "use "+coding.Choice(agents.Names())+
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
			case k.ask && yolo && cmd.Flags().Changed("yolo"):
				return usage("agent: --ask and --yolo are mutually exclusive", "omit one of them")
			}
			k.ask = k.ask || !yolo
			k.repositories = c
			lines := strings.NewReplacer("\r\n", "\n", "\r", "\n")
			k.prompt = strings.TrimSpace(lines.Replace(strings.Join(args[1:], "")))
			var err error
			if k.agent, err = findAgent(args[0]); err != nil {
				return err
			}
			return untilInterrupt(cmd.Context(), k.run)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&k.name, "name", "n", "",
		"name of the new sandbox, or with --count its beginning (default: generated)")
	f.StringVar(&k.clone.Base, "base", "", "commit to begin at (default HEAD)")
	f.BoolVar(&k.clone.Dirty, "dirty", false,
		"add a commit with the uncommitted changes of tracked files")
	f.StringArrayVar(&k.clone.Include, "include", nil, "untracked file to copy, too; repeatable")
	f.StringVar(&k.clone.Dir, "clone-dir", "",
		"directory in the sandbox (default: the path of the work tree)")
	f.StringVar(&k.image, "image", "",
		"image in which to install the program (default: key image)")
	f.StringVar(&k.network, "network", "",
		"network: filtered or allowlist (default: key network)")
	f.StringArrayVar(&k.allow, "allow", nil,
		"host that the sandbox may connect to: NAME, *.NAME, address, range or *; repeatable")
	f.BoolVar(&k.ask, "ask", false, "let the program ask for permissions")
	f.BoolVar(&yolo, "yolo", true, "give the program all permissions in the sandbox")
	f.BoolVarP(&k.detach, "detach", "d", false, "do not attach to the session")
	f.BoolVar(&k.prints, "print", false,
		"run the program without a terminal until it ends, and print its answer")
	f.BoolVar(&k.asJSON, "json", false, "print one object per sandbox, and do not attach")
	f.IntVar(&k.count, "count", 1,
		"number of sandboxes, NAME-1, NAME-2 and so on, with the same prompt")
	f.StringVar(&k.check, "check", "",
		"shell command that tests the work: agent compare runs it in the clones, for at most "+
			"10 minutes")
	f.StringVar(&k.version, "agent-version", "",
		"version of the program (default: the one in its description)")
	cmd.AddCommand(c.agentListCommand(), c.compareCommand(), c.keepCommand())
	return cmd
}

// ownAgents is the directory with the descriptions of the user's own agents.
func ownAgents() string { return filepath.Join(xdg.ConfigHome, "sandboxd", "agents") }

// findAgent returns the description of an agent.
func findAgent(name string) (*agents.Agent, error) {
	a, err := agents.Find(name, ownAgents())
	switch {
	case errors.Is(err, agents.ErrUnknown):
		return nil, usage(fmt.Sprintf("agent: unknown agent %q", text.Line(name, 64)),
			"use "+coding.Choice(agents.Names())+", or the path of a description")
	case err != nil:
		return nil, usage("agent: "+text.Line(err.Error(), 400),
			"see docs/how-to/agents.md for the form of the file")
	}
	return a, nil
}

// notEntered is the error of a prompt that a program did not receive. The program runs.
type notEntered struct{ error }

func (e notEntered) Unwrap() error { return e.error }

// run creates the sandboxes and runs the program in each.
func (k *codingAgent) run(ctx context.Context) error {
	l, err := k.prepare(ctx)
	if err != nil {
		return prefixed("agent: ", err)
	}
	defer l.Close()
	if k.prints {
		return k.print(ctx, l)
	}
	if k.count > 1 {
		return k.all(ctx, l)
	}
	info, err := k.one(ctx, l, k.name)
	unentered, runs := errors.AsType[notEntered](err)
	if err != nil && !runs {
		return prefixed("agent: ", err)
	}
	sshHosts{k.cli}.update(ctx)
	l.Close() // the terminal may stay attached for hours
	interrupted := ctx.Err() != nil
	if runs && (k.attaches() || interrupted) {
		fmt.Fprintf(os.Stderr, "note: agent: %s\n", text.Line(unentered.Error(), 400))
	}
	if k.attaches() && !interrupted {
		err = k.work(ctx, info)
	}
	if !k.asJSON {
		k.printHints(os.Stdout)
	}
	if err != nil {
		err = prefixed("agent: ", err)
	}
	return err
}

// printHints prints what to do with the sandbox.
func (k *codingAgent) printHints(to io.Writer) {
	if !k.prints {
		fmt.Fprintf(to, "  to attach:            sandboxd ssh %s~%s\n", k.name, coding.Session)
	}
	fmt.Fprintf(to, "  to get its commits:   sandboxd fetch %[1]s\n"+
		"  to see its changes:   sandboxd diff %[1]s\n"+
		"  to remove it:         sandboxd rm %[1]s\n", k.name)
}

// print runs the program until it ends, with its output as that of the command, and fetches. The
// exit code is that of the program.
func (k *codingAgent) print(ctx context.Context, l *coding.Launch) error {
	stdout, stderr := shownOn(os.Stdout), shownOn(os.Stderr)
	var info agent.Sandbox
	exit, err := l.Print(ctx, k.name, coding.Print{Prompt: k.prompt, Stdin: pipedInput(),
		Stdout: stdout, Stderr: stderr, Created: func(made agent.Sandbox) {
			info = made
			fmt.Fprintf(os.Stderr, "%s: %s on a clone of %s\n", made.Name, k.agent.Title,
				text.Line(l.Source.Top, 200))
			sshHosts{k.cli}.update(ctx)
		}})
	err = errors.Join(err, stdout.Close(), stderr.Close())
	if info.Name == "" {
		return prefixed("agent: ", err)
	}
	k.fetchLast(context.WithoutCancel(ctx), info, false) // within a minute
	k.printHints(os.Stderr)
	switch {
	case err != nil:
		return prefixed("agent: ", err)
	case exit.Code != 0:
		return exitCode(exit.Code)
	}
	return nil
}

// pipedInput returns the standard input if it is a pipe or a file, else nil.
func pipedInput() io.Reader {
	info, err := os.Stdin.Stat()
	if err != nil || !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0 {
		return nil
	}
	return os.Stdin
}

// options checks the flags, and chooses a name if there is none.
func (k *codingAgent) options() (o coding.Options, err error) {
	o = coding.Options{Agent: k.agent, Version: k.version, Args: k.args, Ask: k.ask,
		Check: k.check, Clone: k.clone, Image: k.image, Allow: k.allow}
	if k.network != "" {
		if o.Network, o.Via, err = command.ParseNetwork(k.network); err != nil {
			return o, usage(fmt.Sprintf("--network %q: %v", k.network, err), "")
		}
	}
	switch {
	case len(k.agent.Secrets) > 0 &&
		(o.Network == sandbox.NetworkNone || o.Network == sandbox.NetworkBridge):
		return o, usage("network "+k.network+" is not supported: the daemon does not carry its "+
			"connections, so it cannot add the key to requests", "use filtered or allowlist")
	case coding.CheckPrompt(k.prompt) != nil:
		return o, coding.CheckPrompt(k.prompt)
	case k.count < 1 || k.count > maxCount:
		return o, usage(fmt.Sprintf("--count must be 1 to %d", maxCount),
			"start more with a second command")
	case k.prints && (k.ask || k.asJSON || k.detach || k.count > 1):
		return o, usage("--print: cannot be used with --ask, --yolo=false, --json, --detach or --count",
			"it prints the answer of one agent, which cannot ask")
	case k.prints && k.prompt == "":
		return o, usage("--print needs a prompt", `such as: sandboxd agent claude --print "fix it"`)
	case k.prints && len(k.agent.Print) == 0:
		return o, usage("--print: "+k.agent.Title+" cannot run without a terminal",
			"its description has no key print")
	case k.count > 1 && k.prompt == "":
		return o, usage("--count needs a prompt", "the agents get the same one")
	}
	k.name = cmp.Or(k.name, k.agent.Name+"-"+strings.ToLower(rand.Text()[:4]))
	o.Names = k.names()
	for _, name := range o.Names {
		if _, err := wire.ParseSandbox(name); err != nil {
			return o, err
		}
	}
	if k.count > 1 {
		o.Group = k.name
	}
	if k.attaches() {
		if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil && rows > 1 {
			o.Cols, o.Rows = cols, rows-1 // the last row has the status line
		}
	}
	o.Dir, err = os.Getwd()
	return o, err
}

// prepare installs the program. The caller closes the Launch.
func (k *codingAgent) prepare(ctx context.Context) (*coding.Launch, error) {
	o, err := k.options()
	if err != nil {
		return nil, err
	}
	progress := shownOn(os.Stderr)
	if isTerminal(os.Stderr) && os.Getenv("TERM") != "dumb" {
		progress = newBars(os.Stderr)
	}
	defer progress.Close()
	o.Progress = progress
	client := k.coding()
	client.Dial = func(ctx context.Context) (*agent.Gateway, error) {
		return k.dialGateway(ctx, true)
	}
	return client.Prepare(ctx, o)
}

// names returns the names of the sandboxes.
func (k *codingAgent) names() []string {
	if k.count == 1 {
		return []string{k.name}
	}
	all := make([]string, k.count)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", k.name, i+1)
	}
	return all
}

// one creates the sandbox name and starts the program in it. After an error other than notEntered,
// there is no sandbox.
func (k *codingAgent) one(ctx context.Context, l *coding.Launch,
	name string) (agent.Sandbox, error) {
	p, err := l.Start(ctx, name)
	if err != nil {
		return agent.Sandbox{}, err
	}
	defer p.Close()
	if !k.asJSON {
		fmt.Printf("%s: %s in session %s, on a clone of %s\n", p.Sandbox.Name, k.agent.Title,
			coding.Session, text.Line(l.Source.Top, 200))
	}
	if k.prompt != "" {
		if err = p.Prompt(ctx, k.prompt); err != nil {
			err = notEntered{prefixed("the prompt was not entered: ", err)}
		}
	}
	if k.asJSON {
		_ = text.WriteJSON(os.Stdout, launched{p.Sandbox.Name, k.agent.Name, coding.Session,
			l.Source.Top, p.Sandbox.Name, k.prompt != "" && err == nil})
	}
	return p.Sandbox, err
}

// attaches reports whether the command attaches its terminal to the session.
func (k *codingAgent) attaches() bool {
	return k.count == 1 && !k.detach && !k.asJSON && isTerminal(os.Stdin) && isTerminal(os.Stdout)
}

// work attaches to the session of a sandbox until the user detaches or the program ends. Then it
// fetches.
func (k *codingAgent) work(ctx context.Context, info agent.Sandbox) error {
	err := k.attach(ctx, info.Name+"~"+coding.Session)
	if ctx.Err() == nil {
		k.fetchLast(ctx, info, false)
	}
	return err
}

const (
	sshFailed = 255             // exit code of ssh(1) for errors of its own, which it has printed
	sshEnds   = 3 * time.Second // how long it may take to end after a signal
)

// attach runs ssh(1) on this terminal until the user detaches or the session ends.
func (k *codingAgent) attach(ctx context.Context, target string) error {
	words, err := sshWords(ctx, k.cli, nil, target)
	if err != nil {
		return err
	}
	ssh := exec.CommandContext(ctx, words[0], words[1:]...)
	ssh.Stdin, ssh.Stdout, ssh.Stderr = os.Stdin, os.Stdout, os.Stderr
	// After SIGTERM, ssh resets the terminal.
	ssh.Cancel = func() error { return ssh.Process.Signal(syscall.SIGTERM) }
	ssh.WaitDelay = sshEnds
	err = ssh.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case ok && exit.ExitCode() == sshFailed:
		return wire.Errorf(wire.CodeUnavailable, "ssh to %s failed", target)
	case ok:
		return nil // the exit code of the program
	}
	return err
}
