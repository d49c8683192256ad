package coding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/images/agents"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what the sandboxes of one Launch have.
type Options struct {
	Agent   *agents.Agent
	Version string   // of the program; empty means the one of its description
	Args    []string // more arguments of the program
	Ask     bool     // the program asks for permissions
	Check   string   // shell command that tests the work; empty without

	// Names are those of the sandboxes. Group is the name under which they begin together; empty
	// for one alone.
	Names []string
	Group string

	Dir   string // of the repository, on this machine
	Clone clone.Options
	Image string // in which the program is installed; empty means the daemon's default

	// Network, Via and Allow are as in [agent.Spec].
	Network sandbox.Network
	Via     sandbox.Via
	Allow   []string

	Cols, Rows int       // of the session's terminal; 0 means the daemon's default
	Progress   io.Writer // receives messages of the installation; nil discards them
}

// Launch starts the sandboxes of one command. Its methods are safe for concurrent use.
type Launch struct {
	Options
	Source *clone.Source

	client  *Client
	gateway *agent.Gateway
	from    string          // image with the program; empty is the default image
	setup   []string        // commands that install the program in each sandbox, if from lacks it
	bound   []agents.Secret // that each of the sandboxes uses
}

// Prepare checks the repository, the names and the secrets, and installs the program in an image,
// unless an earlier call did. No sandbox is created. The caller closes the Launch.
func (c *Client) Prepare(ctx context.Context, o Options) (*Launch, error) {
	l := &Launch{Options: o, client: c}
	var err error
	if l.Source, err = clone.Open(ctx, o.Dir, o.Clone); err != nil {
		return nil, err
	}
	if l.gateway, err = c.Dial(ctx); err != nil {
		return nil, err
	}
	if err = l.isFree(ctx); err == nil {
		l.bound, err = l.secrets(ctx)
	}
	if err == nil {
		if err = l.install(ctx); err != nil {
			err = fmt.Errorf("install %s: %w", o.Agent.Title, err)
		}
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close closes the connection to the daemon. The sandboxes and their programs continue.
func (l *Launch) Close() error { return l.gateway.Close() }

// isFree returns an error if a sandbox has one of the names, or is in the group, already. The
// daemon decides about names later; the installation, which takes long, comes before that.
func (l *Launch) isFree(ctx context.Context) error {
	sandboxes, err := l.gateway.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range sandboxes {
		if slices.Contains(l.Names, s.Name) {
			return &wire.Error{Code: wire.CodeExists,
				Message: "sandbox " + s.Name + " exists already", Hint: "use another name"}
		}
		if l.Group == "" {
			continue
		}
		record, err := l.client.Clones.Find(s.ID)
		if err == nil && record != nil && record.Group == l.Group {
			return &wire.Error{Code: wire.CodeExists,
				Message: fmt.Sprintf("sandbox %s of an earlier group %s exists", s.Name, l.Group),
				Hint:    "use another name, or first: sandboxd agent keep " + s.Name}
		}
	}
	return nil
}

// secrets returns those secrets of the agent that each of the sandboxes will use. If the agent
// needs one and none is set, the error has the command that sets it.
func (l *Launch) secrets(ctx context.Context) ([]agents.Secret, error) {
	if len(l.Agent.Secrets) == 0 {
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
	other := "" // a secret for the right host, with a header that the agent does not use
	has := func(name string, want agents.Secret) bool {
		for _, s := range set {
			if len(s.Sandboxes) > 0 && !slices.Contains(s.Sandboxes, name) {
				continue
			}
			for _, b := range s.Bindings {
				header, _, _ := strings.Cut(b.Header, ":")
				switch {
				case b.Host != want.Host:
				case want.Header == "" || strings.EqualFold(header, want.Header):
					return true
				default:
					other = fmt.Sprintf("; secret %s has the header %s", s.Name, header)
				}
			}
		}
		return false
	}
	var bound []agents.Secret
	var missing, commands []string
	for _, s := range l.Agent.Secrets {
		without := slices.IndexFunc(l.Names,
			func(name string) bool { return !has(name, s) })
		if without < 0 {
			bound = append(bound, s)
			continue
		}
		lacks = l.Names[without]
		if !slices.Contains(missing, s.Host) {
			missing = append(missing, s.Host)
		}
		commands = append(commands, "sandboxd secret set "+s.Set)
	}
	if len(bound) == 0 {
		return nil, &wire.Error{Code: wire.CodeNotFound,
			Message: l.Agent.Title + " needs a secret for " + Choice(missing) +
				", and sandbox " + lacks + " would have none" + other,
			Hint: "set it: " + strings.Join(commands, ", or: ")}
	}
	return bound, nil
}

// install finds the image with the program. The first call makes it. If the daemon does not save
// sandboxes as images, the program is installed in each of them later.
func (l *Launch) install(ctx context.Context) error {
	setup, err := l.Agent.Install(l.Version)
	if err != nil {
		return &wire.Error{Code: wire.CodeUsage, Message: err.Error()}
	}
	if len(setup) == 0 {
		l.from = l.Image // it has it
		return nil
	}
	words := []string{"prepare", "--json", "--or-setup"}
	for _, command := range setup {
		words = append(words, "--setup="+command)
	}
	for _, host := range l.Agent.Hosts {
		words = append(words, "--allow="+host)
	}
	if l.Network != "" {
		network := string(l.Network)
		if l.Via != "" {
			network += "=" + string(l.Via)
		}
		words = append(words, "--network="+network)
	}
	if l.Image != "" {
		words = append(words, "--image="+l.Image)
	}
	out, err := l.gateway.Command(ctx, l.Progress, words...)
	if err != nil {
		return err
	}
	var made struct {
		Image string
		Setup []string
	}
	err = json.Unmarshal(out, &made)
	l.from, l.setup = made.Image, made.Setup
	return err
}

// setUp installs the program in a new sandbox, if its image lacks it.
func (l *Launch) setUp(ctx context.Context, client *agent.Client, name string) error {
	if len(l.setup) > 0 {
		l.client.notef("installing %s in %s: the daemon cannot save it as an image",
			l.Agent.Title, name)
	}
	for _, command := range l.setup {
		said := &text.Head{Limit: 1 << 20} // the reason comes last
		exit, err := client.Exec(ctx, agent.Cmd{Command: "exec 2>&1\n" + command, Stdout: said})
		if err == nil && exit.Code != 0 {
			err = &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf(
				"%s: exit code %d: %s", text.Line(command, 120), exit.Code,
				text.End(said.String(), 400))}
		}
		if err != nil {
			return fmt.Errorf("install %s in %s: %w", l.Agent.Title, name, err)
		}
	}
	return nil
}

// removeWithin bounds how long Start takes to remove a sandbox after an error.
const removeWithin = time.Minute

// Start creates the sandbox name, clones the repository into it and starts the program there. The
// caller closes the Program. After an error, Start removes the sandbox; a note says if it cannot.
func (l *Launch) Start(ctx context.Context, name string) (*Program, error) {
	info, client, err := l.create(ctx, name, false)
	if err != nil {
		return nil, err
	}
	flags := l.Agent.Yolo
	if l.Ask {
		flags = l.Agent.Ask
	}
	sh, err := client.Attach(ctx, agent.ShellOptions{Session: Session, Fresh: true,
		Start: agent.Start{Argv: slices.Concat(l.Agent.Command, flags, l.Args),
			Dir: l.Source.Dir, Bare: true, Cols: l.Cols, Rows: l.Rows}})
	if err != nil {
		client.Close()
		l.remove(ctx, info)
		return nil, err
	}
	return &Program{Sandbox: info, shell: sh, client: client, agent: l.Agent}, nil
}

// Print is a program that runs without a terminal and answers a prompt.
type Print struct {
	Prompt         string
	Stdin          io.Reader // nil is empty
	Stdout, Stderr io.Writer
	// Created is called with the new sandbox, before the program starts.
	Created func(agent.Sandbox)
}

// Print creates the sandbox name, clones the repository into it, and runs the program there until
// it ends. When ctx ends, the program gets SIGINT, and SIGKILL after interruptTime; the error is
// the cause of ctx. An error before Created leaves no sandbox, a later one leaves it with the work
// of the program.
func (l *Launch) Print(ctx context.Context, name string, p Print) (agent.Exit, error) {
	prompt := p.Prompt
	if strings.HasPrefix(prompt, "-") {
		prompt = " " + prompt // not an option of the program
	}
	answers, err := l.Agent.Answers(prompt)
	if err != nil {
		return agent.Exit{}, err
	}
	info, client, err := l.create(ctx, name, true)
	if err != nil {
		return agent.Exit{}, err
	}
	defer client.Close()
	p.Created(info)
	signals, ended := make(chan string), make(chan struct{})
	defer close(ended)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go func() { // ends with this call
		select {
		case <-ctx.Done():
		case <-ended:
			return
		}
		for _, name := range []string{"INT", "KILL"} {
			select {
			case signals <- name:
			case <-ended:
				return
			}
			select {
			case <-time.After(interruptTime):
			case <-ended:
				return
			}
		}
		cancel() // the sandbox does not answer
	}()
	exit, err := client.Exec(running, agent.Cmd{Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr,
		Signals: signals, Command: "cd -- " + text.Quote(l.Source.Dir) + " && exec " +
			text.Quote(slices.Concat(l.Agent.Command, answers, l.Args)...)})
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	l.client.noteEnd(info)
	return exit, err
}

// interruptTime is how long a program may run after SIGINT.
const interruptTime = 5 * time.Second

// noteEnd records that a program of Print has ended.
func (c *Client) noteEnd(of agent.Sandbox) {
	record, err := c.Clones.Find(of.ID)
	if err == nil && record != nil {
		record.Prints = false
		err = c.Clones.Add(record)
	}
	if err != nil {
		c.notef("%s: end of the program: %v", of.Name, err)
	}
}

// create creates the sandbox name, clones the repository into it, and writes the files of the
// agent. After an error, it removes the sandbox; a note says if it cannot. The caller closes the
// Client.
func (l *Launch) create(ctx context.Context, name string,
	prints bool) (agent.Sandbox, *agent.Client, error) {
	info, err := l.gateway.Create(ctx, l.spec(name))
	if err != nil {
		return info, nil, err
	}
	client, err := l.gateway.Dial(ctx, info.Name)
	if err == nil {
		if err = l.fill(ctx, client, info, prints); err == nil {
			return info, client, nil
		}
		client.Close()
	}
	l.remove(ctx, info)
	return info, nil, err
}

// remove removes a new sandbox after an error.
func (l *Launch) remove(ctx context.Context, info agent.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	if left := l.gateway.Remove(ctx, info.Name); left != nil {
		l.client.notef("sandbox %s was not removed: %v", info.Name, left)
	}
	l.client.Forget(ctx, []agent.Sandbox{info})
}

// spec returns the specification of a sandbox.
func (l *Launch) spec(name string) agent.Spec {
	return agent.Spec{Name: name, Image: l.from, Workdir: l.Source.Dir,
		Network: l.Network, Via: l.Via, Allow: slices.Concat(l.Allow, l.Agent.Hosts),
		Env:   l.Agent.Variables(l.bound),
		About: l.Agent.Title + " works on a clone of " + text.Line(l.Source.Top, 200)}
}

// fill clones the repository into a new sandbox, and writes the files of the agent.
func (l *Launch) fill(ctx context.Context, client *agent.Client, info agent.Sandbox,
	prints bool) error {
	if len(l.bound) > 0 && len(info.Secrets) == 0 {
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s with network %s cannot use secrets", info.Name,
				info.Network), Hint: "use --network filtered or allowlist"}
	}
	if err := l.setUp(ctx, client, info.Name); err != nil {
		return err
	}
	record, err := l.Source.Copy(ctx, info.Name, info.ID, client)
	if err != nil {
		return err
	}
	record.Agent, record.AgentFile, record.Prints = l.Agent.Name, l.Agent.File, prints
	record.Check, record.Group = l.Check, l.Group
	if err := l.client.Add(ctx, record); err != nil {
		return err
	}
	files, err := l.Agent.Render(l.Source.Dir, l.bound)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := writeInside(ctx, client, f); err != nil {
			return err
		}
	}
	return nil
}
