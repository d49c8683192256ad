package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func execCommand(env *Env) *cobra.Command {
	var o execOptions
	var variables []string
	var dir, maxOutput string
	cmd := &cobra.Command{
		Use:   "exec [-i] [-t] [-e K=V] [-w DIR] [-u USER] NAME [--] CMD…",
		Short: "run a command outside a session, with separate stdout and stderr",
		Long: "Run a command outside a session, with separate stdout and stderr. The exit\n" +
			"code is that of the command.\n\n" +
			"One argument is shell text, several are a program and its arguments. Flags\n" +
			"come before NAME. -e and -w need a shell in the image. On a terminal, output\n" +
			"is printed as text, without colors and control sequences. -t, a pipe or a file\n" +
			"gets the exact bytes.\n\n" +
			"-u runs the command as another user of the sandbox. It is an error in\n" +
			"sandboxes created with --user and without --sudo, and on hosts. Where programs\n" +
			"cannot become root, only the owner may use it.\n\n" +
			"Connections that the network blocks while the command runs are listed on\n" +
			"standard error, and in \"denied\" of --json.",
		Example: "  sandboxd exec web -- cat /etc/os-release\n" +
			"  sandboxd exec -e TOKEN=x -w /srv web ./deploy\n" +
			"  sandboxd exec -u www-data web -- id\n" +
			"  sandboxd exec --json web -- uname -a\n" +
			"  sandboxd exec -i web 'tar -xf -' <files.tar",
		Args: cobra.MinimumNArgs(1),
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && strings.HasPrefix(args[1], "-") && args[1] != "--" &&
				!cmd.Flags().Changed("name") {
				return usage("exec: flags come before the name: exec %s … %s", args[1], args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := wire.ParseLabel("sandbox name", args[0])
			if err != nil {
				return err
			}
			switch {
			case o.tty && o.asJSON:
				return usage("exec: -t and --json are mutually exclusive")
			case o.tty && env.Pty == nil:
				return &wire.Error{Code: wire.CodeUsage, Message: "exec: -t needs a terminal",
					Hint: "omit -t"}
			case cmd.Flags().Changed("max-output") && !o.asJSON:
				return usage("exec: --max-output needs --json")
			case cmd.Flags().Changed("user"):
				if err := checkUser(o.user); err != nil {
					return err
				}
			}
			if o.before, err = setup(variables, dir); err != nil {
				return err
			}
			if o.most, err = execOutput(maxOutput); err != nil {
				return err
			}
			words := args[1:]
			if len(words) == 0 {
				return usage("exec: no command")
			}
			line := words[0]
			if len(words) > 1 {
				line = text.Quote(words...)
			}
			o.input = o.input || o.tty
			x := &execution{env: env, sandbox: name, text: line, o: o,
				stdout: env.Stdout, stderr: env.Stderr}
			if o.asJSON {
				return x.json(cmd.Context())
			}
			return x.print(cmd.Context())
		},
	}
	cmd.Flags().BoolVarP(&o.input, "interactive", "i", false, "pass standard input to the command")
	cmd.Flags().BoolVarP(&o.tty, "tty", "t", false,
		"run the command on a new terminal, which is recorded")
	cmd.Flags().StringVarP(&o.user, "user", "u", "",
		"user in the sandbox: NAME or UID[:GID] (default: the user of its sessions)")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print one object when the command has ended")
	cmd.Flags().StringVar(&maxOutput, "max-output", "1m",
		"with --json: longest stdout and longest stderr in bytes; 0 means all, up to 16m")
	cmd.Flags().StringArrayVarP(&variables, "env", "e", nil,
		"NAME=VALUE, a variable of the command; repeatable")
	cmd.Flags().StringVarP(&dir, "workdir", "w", "",
		"working directory (default: the home directory)")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// execOptions are the options of exec.
type execOptions struct {
	input, tty, asJSON bool
	user               string // empty is the user of the sandbox's sessions
	before             string // shell text before the command; not recorded
	most               int    // longest stdout, and longest stderr, with asJSON, in bytes
}

// execOutput parses --max-output. 0 means as much as is possible.
func execOutput(size string) (int, error) {
	if size == "0" {
		return maxExecOutput, nil
	}
	n, err := parseSize("max-output", size)
	if err == nil && n > maxExecOutput {
		err = usage("exec: --max-output %s: must be at most 16m", size)
	}
	return int(n), err
}

// execUser matches a user: a name or uid, with or without a group.
var execUser = regexp.MustCompile(
	`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)

func checkUser(user string) error {
	if !execUser.MatchString(user) {
		return usage("--user %q: write NAME, UID or UID:GID", user)
	}
	return nil
}

// variableName matches the name of a shell variable.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// setup returns shell text that sets variables, each NAME=VALUE, and changes to dir unless it is
// empty. The shell exits if dir does not exist. The text precedes a command.
func setup(variables []string, dir string) (string, error) {
	var lines strings.Builder
	for _, v := range variables {
		name, value, ok := strings.Cut(v, "=")
		if !ok || !variableName.MatchString(name) {
			return "", usage("--env %q: write NAME=VALUE", v)
		}
		fmt.Fprintf(&lines, "export %s=%s\n", name, text.Quote(value))
	}
	if dir != "" {
		fmt.Fprintf(&lines, "cd -- %s || exit\n", text.Quote(dir))
	}
	return lines.String(), nil
}

// execution is one command that exec runs.
type execution struct {
	env            *Env
	sandbox, text  string
	o              execOptions
	stdout, stderr io.Writer
}

// run runs the command on a new SSH connection. The error is an exitError for an exit status other
// than 0.
func (x *execution) run(ctx context.Context) error {
	env, o := x.env, x.o
	up, err := env.Hub.Relay.OpenAs(ctx, env.Principal, x.sandbox, o.user, env.progress(o.asJSON))
	if err != nil {
		return err
	}
	client := up.Client()
	defer func() {
		client.Close()
		_ = client.Wait()
	}()
	count := &counter{}
	event := gateway.ExecEvent{Command: x.text, User: o.user, Exit: -1}
	command := connect.Command{Line: o.before + x.text, Stdout: count.tee(x.stdout),
		Stderr: count.tee(x.stderr)}
	if o.input {
		command.Stdin = env.Stdin
	}
	var term *gateway.Terminal // nil without one
	if o.tty {
		output := &recorded{to: command.Stdout}
		command.Pty, command.Stdout = env.Pty, output
		command.Ready = func() (err error) {
			term, err = env.Hub.Relay.Terminal(ctx, env.Principal, x.sandbox, x.text,
				int(env.Pty.Cols), int(env.Pty.Rows))
			output.term = term
			return err
		}
		defer func() {
			if term != nil {
				term.Close(event.Exit)
			}
		}()
	}
	record := env.Hub.Relay.Recorder(env.Principal, x.sandbox)
	running, err := connect.Start(ctx, client, command)
	if err != nil {
		return x.failed(ctx, err)
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() { // passes on changes of size and ^C of the caller's terminal
		defer close(done)
		for {
			select {
			case w := <-env.Resized:
				if o.tty {
					term.Resize(int(w.Cols), int(w.Rows))
					_ = running.Resize(w)
				}
			case <-env.Interrupts:
				_ = running.Signal("INT")
			case <-ended:
				return
			}
		}
	}()
	err = running.Wait()
	close(ended)
	<-done
	event.Bytes = count.total()
	exit, exited := errors.AsType[*connect.ExitError](err)
	switch {
	case err == nil:
		event.Exit = 0
	case exited:
		event.Exit = exit.Status
	}
	record(event)
	switch {
	case err == nil:
		return nil
	case exited:
		return exitError(event.Exit)
	}
	return x.failed(ctx, err)
}

// failed returns the error of a command whose exit status is unknown.
func (x *execution) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return exitError(wire.ExitInterrupt)
	case errors.Is(err, connect.ErrNoTerminal):
		return wire.Errorf(wire.CodeUnavailable, "sandbox %s: cannot open a terminal", x.sandbox)
	case errors.Is(err, connect.ErrLost):
		return x.env.Hub.Relay.Lost(ctx, x.env.Principal, x.sandbox)
	case errors.As(err, new(*wire.Error)):
		return err
	}
	return fmt.Errorf("exec in %s: %w", x.sandbox, err)
}

// recorded writes output to the recording first, and then to the caller.
type recorded struct {
	term *gateway.Terminal // set before the first output
	to   io.Writer
}

func (r *recorded) Write(p []byte) (int, error) {
	if n, err := r.term.Write(p); err != nil {
		return n, err
	}
	return r.to.Write(p)
}

// counter counts the bytes of two writers.
type counter struct {
	mu sync.Mutex
	n  int64 // guarded by mu
}

func (c *counter) total() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *counter) tee(w io.Writer) io.Writer { return &counted{c, w} }

type counted struct {
	c *counter
	w io.Writer
}

func (t *counted) Write(p []byte) (int, error) {
	n, err := t.w.Write(p)
	t.c.mu.Lock()
	t.c.n += int64(n)
	t.c.mu.Unlock()
	return n, err
}
