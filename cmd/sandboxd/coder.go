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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/adrg/xdg"
	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/gateway/command"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// coderSession is the session in which a coding agent runs.
const coderSession = "agent"

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
			"PROMPT is typed when the program is ready. Without PROMPT, you type it. ARG is\n" +
			"an argument of the program, such as --model.\n\n" +
			"The program runs in the session agent. On a terminal, the command attaches to\n" +
			"it. The program uses your API key but cannot read it: set the key first with\n" +
			"sandboxd secret set. The first run installs the program and saves an image.\n\n" +
			"The program does not ask for permissions, unless --ask is set. To get its\n" +
			"commits, use sandboxd fetch.",
		Example: "  sandboxd secret set anthropic --from-env ANTHROPIC_API_KEY\n" +
			"  sandboxd agent claude \"fix the failing tests and commit\" -n fix\n" +
			"  sandboxd fetch fix && sandboxd diff fix",
		DisableFlagsInUseLine: true,
		ValidArgs:             agents.Names(),
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
			case k.ask && yolo && cmd.Flags().Changed("yolo"):
				return usage("agent: --ask and --yolo are mutually exclusive", "omit one of them")
			}
			k.ask = k.ask || !yolo
			k.repositories, k.prompt = c, strings.TrimSpace(strings.Join(args[1:], ""))
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
		"host that the sandbox may connect to: NAME, *.NAME, address or range; repeatable")
	f.BoolVar(&k.ask, "ask", false, "let the program ask for permissions")
	f.BoolVar(&yolo, "yolo", true, "give the program all permissions in the sandbox")
	f.BoolVarP(&k.detach, "detach", "d", false, "do not attach to the session")
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

// launch is what the sandboxes of one command share.
type launch struct {
	*codingAgent
	gateway *agent.Gateway
	src     *clone.Source
	from    string // image with the program; empty is the default image
	network sandbox.Network
	via     sandbox.Via
	bound   []agents.Secret
}

// notEntered is the error of a prompt that a program did not receive. The program runs.
type notEntered struct{ error }

func (e notEntered) Unwrap() error { return e.error }

// run creates the sandboxes and runs the program in each.
func (k *codingAgent) run(ctx context.Context) error {
	l := launch{codingAgent: k}
	err := l.validate()
	if err != nil {
		return prefixed("agent: ", err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if l.src, err = clone.Open(ctx, dir, k.clone); err != nil {
		return prefixed("agent: ", err)
	}
	host, o, err := k.reach(ctx, true)
	if err != nil {
		return err
	}
	if l.gateway, err = agent.DialGateway(ctx, "ssh://"+host, o); err != nil {
		return k.notReached(err, host, o)
	}
	defer l.gateway.Close()
	if err := l.isFree(ctx); err != nil {
		return prefixed("agent: ", err)
	}
	if l.bound, err = l.secrets(ctx); err != nil {
		return prefixed("agent: ", err)
	}
	if l.from, err = l.install(ctx); err != nil {
		return prefixed("agent: install "+k.agent.Title+": ", err)
	}
	if k.count > 1 {
		return l.all(ctx)
	}
	err = l.one(ctx, k.name)
	unentered, runs := errors.AsType[notEntered](err)
	if err != nil && !runs {
		return prefixed("agent: ", err)
	}
	sshHosts{k.cli}.update(ctx)
	l.gateway.Close() // the terminal may stay attached for hours
	interrupted := ctx.Err() != nil
	if runs && (k.attaches() || interrupted) {
		fmt.Fprintf(os.Stderr, "note: agent: %s\n", text.Line(unentered.Error(), 400))
	}
	if k.attaches() && !interrupted {
		err = k.attach(ctx, k.name+"~"+coderSession)
	}
	if !k.asJSON {
		k.printHints()
	}
	if err != nil {
		err = prefixed("agent: ", err)
	}
	return err
}

// printHints prints what to do with the sandbox.
func (k *codingAgent) printHints() {
	fmt.Printf("  to attach:            sandboxd ssh %[1]s~%[2]s\n"+
		"  to get its commits:   sandboxd fetch %[1]s\n"+
		"  to see its changes:   sandboxd diff %[1]s\n"+
		"  to remove it:         sandboxd rm %[1]s\n", k.name, coderSession)
}

// validate checks the flags, and chooses a name if there is none.
func (l *launch) validate() error {
	k := l.codingAgent
	if k.network != "" {
		var err error
		if l.network, l.via, err = command.ParseNetwork(k.network); err != nil {
			return usage(fmt.Sprintf("--network %q: %v", k.network, err), "")
		}
	}
	switch {
	case len(k.agent.Secrets) > 0 &&
		(l.network == sandbox.NetworkNone || l.network == sandbox.NetworkBridge):
		return usage("network "+k.network+" is not supported: the daemon does not carry its "+
			"connections, so it cannot add the key to requests", "use filtered or allowlist")
	case strings.ContainsFunc(k.prompt, unicode.IsControl), !utf8.ValidString(k.prompt):
		return usage("the prompt has more than one line, or control characters",
			"write one line, or name a file in it that --include copies")
	case k.count < 1 || k.count > maxCount:
		return usage(fmt.Sprintf("--count must be 1 to %d", maxCount),
			"start more with a second command")
	case k.count > 1 && k.prompt == "":
		return usage("--count needs a prompt", "the agents get the same one")
	}
	k.name = cmp.Or(k.name, k.agent.Name+"-"+strings.ToLower(rand.Text()[:4]))
	for _, name := range k.names() {
		if _, err := wire.ParseSandbox(name); err != nil {
			return err
		}
	}
	return nil
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

// isFree returns an error if a sandbox has one of the names, or is in the group, already. The
// daemon decides about names later; the installation, which takes long, comes before that.
func (l *launch) isFree(ctx context.Context) error {
	sandboxes, err := l.gateway.List(ctx)
	if err != nil {
		return err
	}
	names := l.names()
	for _, s := range sandboxes {
		if slices.Contains(names, s.Name) {
			return &wire.Error{Code: wire.CodeExists,
				Message: "sandbox " + s.Name + " exists already", Hint: "use another name"}
		}
		if l.count == 1 {
			continue
		}
		record, err := l.clones().Find(s.ID)
		if err == nil && record != nil && record.Group == l.name {
			return &wire.Error{Code: wire.CodeExists,
				Message: fmt.Sprintf("sandbox %s of an earlier group %s exists", s.Name, l.name),
				Hint:    "use another name, or first: sandboxd agent keep " + s.Name}
		}
	}
	return nil
}

// one creates the sandbox name and starts the program in it. After an error other than notEntered,
// it removes the sandbox; a note says if it cannot.
func (l *launch) one(ctx context.Context, name string) error {
	info, err := l.gateway.Create(ctx, l.spec(name))
	if err != nil {
		return err
	}
	client, err := l.gateway.Dial(ctx, info.Name)
	var sh *agent.Shell
	if err == nil {
		defer client.Close()
		sh, err = l.begin(ctx, client, info)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if left := l.gateway.Remove(ctx, info.Name); left != nil {
			fmt.Fprintf(os.Stderr, "note: sandbox %s was not removed: %s\n", info.Name,
				text.Line(left.Error(), 200))
		}
		l.forget(ctx, []agent.Sandbox{info})
		return err
	}
	defer sh.Close()
	if !l.asJSON {
		fmt.Printf("%s: %s in session %s, on a clone of %s\n", info.Name, l.agent.Title,
			coderSession, text.Line(l.src.Top, 200))
	}
	if l.prompt != "" {
		if err = enterPrompt(ctx, sh, l.agent, l.prompt); err != nil {
			err = notEntered{prefixed("the prompt was not entered: ", err)}
		}
	}
	if l.asJSON {
		_ = text.WriteJSON(os.Stdout, launched{info.Name, l.agent.Name, coderSession, l.src.Top,
			info.Name, l.prompt != "" && err == nil})
	}
	return err
}

// secrets returns those secrets of the agent that each of the sandboxes will use. If the agent
// needs one and none is set, the error has the command that sets it.
func (l *launch) secrets(ctx context.Context) ([]agents.Secret, error) {
	if len(l.agent.Secrets) == 0 {
		return nil, nil
	}
	out, err := l.gateway.Command(ctx, nil, "secret", "ls", "--json")
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
	for _, s := range l.agent.Secrets {
		names := l.names()
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
			Message: l.agent.Title + " needs a secret for " + list(missing) +
				", and sandbox " + lacks + " would have none",
			Hint: "set it: " + strings.Join(commands, ", or: ")}
	}
	return bound, nil
}

// install returns the image with the program. The first call makes it.
func (l *launch) install(ctx context.Context) (string, error) {
	setup, err := l.agent.Install(l.version)
	if err != nil {
		return "", &wire.Error{Code: wire.CodeUsage, Message: err.Error()}
	}
	if len(setup) == 0 {
		return l.image, nil // it has it
	}
	words := []string{"prepare", "--json"}
	for _, command := range setup {
		words = append(words, "--setup="+command)
	}
	for _, host := range l.agent.Hosts {
		words = append(words, "--allow="+host)
	}
	if l.codingAgent.network != "" {
		words = append(words, "--network="+l.codingAgent.network)
	}
	if l.image != "" {
		words = append(words, "--image="+l.image)
	}
	progress := shownOn(os.Stderr)
	if isTerminal(os.Stderr) && os.Getenv("TERM") != "dumb" {
		progress = newBars(os.Stderr)
	}
	defer progress.Close()
	out, err := l.gateway.Command(ctx, progress, words...)
	if err != nil {
		return "", err
	}
	var made struct{ Image string }
	err = json.Unmarshal(out, &made)
	return made.Image, err
}

// spec returns the specification of a sandbox.
func (l *launch) spec(name string) agent.Spec {
	return agent.Spec{Name: name, Image: l.from, Workdir: l.src.Dir,
		Network: l.network, Via: l.via, Allow: slices.Concat(l.allow, l.agent.Hosts),
		Env:   l.agent.Variables(l.bound),
		About: l.agent.Title + " works on a clone of " + text.Line(l.src.Top, 200)}
}

// begin clones the repository, writes the files of the agent and starts its program. The caller
// closes the Shell.
func (l *launch) begin(ctx context.Context, client *agent.Client,
	info agent.Sandbox) (*agent.Shell, error) {
	if len(l.bound) > 0 && len(info.Secrets) == 0 {
		return nil, &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s with network %s cannot use secrets", info.Name,
				info.Network), Hint: "use --network filtered or allowlist"}
	}
	record, err := l.src.Copy(ctx, info.Name, info.ID, client)
	if err != nil {
		return nil, err
	}
	record.Agent, record.Check = l.agent.Name, l.check
	if l.count > 1 {
		record.Group = l.name
	}
	if err := l.add(ctx, record); err != nil {
		return nil, err
	}
	files, err := l.agent.Render(l.src.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := writeInside(ctx, client, f); err != nil {
			return nil, err
		}
	}
	flags := l.agent.Yolo
	if l.ask {
		flags = l.agent.Ask
	}
	start := agent.Start{Argv: slices.Concat(l.agent.Command, flags, l.args), Dir: l.src.Dir,
		Bare: true}
	if l.attaches() {
		if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil && rows > 1 {
			start.Cols, start.Rows = cols, rows-1 // the last row has the status line
		}
	}
	return client.Attach(ctx, agent.ShellOptions{Session: coderSession, Fresh: true, Start: start})
}

// attaches reports whether the command attaches its terminal to the session.
func (k *codingAgent) attaches() bool {
	return k.count == 1 && !k.detach && !k.asJSON && isTerminal(os.Stdin) && isTerminal(os.Stdout)
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
		Command: "umask 077; p=" + path + `; mkdir -p -- "$(dirname -- "$p")" && cat >"$p"`})
	if err == nil && exit.Code != 0 {
		err = &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("write %s in the sandbox: %s", f.Path,
				text.Line(said.String(), 200))}
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
