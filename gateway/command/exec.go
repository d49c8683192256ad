package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func execCommand(env *Env) *cobra.Command {
	var o execOptions
	var variables []string
	var dir, maxOutput string
	cmd := &cobra.Command{
		Use:   "exec [-i] [-t] [-e K=V] [-w DIR] [-u USER] NAME [--] CMD…",
		Short: "run a command outside a session, with separate stdout and stderr",
		Long: "Run a command as a process of its own: separate stdout and stderr, the exact exit code, no terminal unless -t.\n" +
			"One argument is shell text, several are a program and its arguments. The command line of sandboxd shows output on a terminal\n" +
			"as text, without colours and control sequences; -t, and a pipe or a file, get the exact bytes.\n" +
			"Flags come before NAME. -e and -w take a shell in the image.\n\n" +
			"-u runs the command as another user of the sandbox. Sandboxes that were made with --user and\n" +
			"without --sudo, and hosts, refuse it. Connections that the network policy blocks while the\n" +
			"command runs are listed on standard error, and in \"denied\" of --json.",
		Example: "  sandboxd exec web -- cat /etc/os-release\n" +
			"  sandboxd exec -e TOKEN=x -w /srv web ./deploy\n" +
			"  sandboxd exec -u www-data web -- id\n" +
			"  sandboxd exec --json web -- uname -a\n" +
			"  sandboxd exec -i web 'tar -xf -' <files.tar",
		Args: cobra.MinimumNArgs(1),
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && strings.HasPrefix(args[1], "-") && args[1] != "--" && !cmd.Flags().Changed("name") {
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
				return usage("exec: -t and --json exclude each other")
			case o.tty && env.Pty == nil:
				return &wire.Error{Code: wire.CodeUsage, Message: "exec -t needs a terminal", Hint: "leave out -t"}
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
			if o.most, err = parseSize("max-output", maxOutput); err != nil {
				return err
			}
			words := args[1:]
			if len(words) == 0 {
				return usage("exec: no command")
			}
			text := words[0]
			if len(words) > 1 {
				text = shellquote.Join(words...)
			}
			o.input = o.input || o.tty
			if o.asJSON {
				return env.execJSON(cmd.Context(), name, text, o)
			}
			return env.execText(cmd.Context(), name, text, o)
		},
	}
	cmd.Flags().BoolVarP(&o.input, "interactive", "i", false, "pass standard input on")
	cmd.Flags().BoolVarP(&o.tty, "tty", "t", false, "with a terminal of its own, which is recorded")
	cmd.Flags().StringVarP(&o.user, "user", "u", "", "user of the sandbox, as NAME or UID[:GID] (default that of its sessions)")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print one object when the command has ended")
	cmd.Flags().StringVar(&maxOutput, "max-output", "1m", "with --json: most bytes of stdout and of stderr, up to 16m")
	cmd.Flags().StringArrayVarP(&variables, "env", "e", nil, "NAME=VALUE for the command; may be repeated")
	cmd.Flags().StringVarP(&dir, "workdir", "w", "", "directory to run it in (default the home directory)")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// execOptions are what exec is given beside the sandbox and the command.
type execOptions struct {
	input, tty, asJSON bool
	user               string // empty is that of the sandbox's sessions
	before             string // shell text in front of the command, which is not recorded
	most               int64  // bytes of each output with asJSON; 0 is the default
}

// execUser is how a user is named: by name or uid, with a group or without.
var execUser = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)

func checkUser(user string) error {
	if !execUser.MatchString(user) {
		return usage("--user %q: write NAME, UID or UID:GID", user)
	}
	return nil
}

// variableName is what shells take as the name of a variable.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// setup returns shell text that sets variables, each NAME=VALUE, and changes to dir unless it is
// empty. A directory that is not there ends the shell. It goes in front of a command.
func setup(variables []string, dir string) (string, error) {
	var text strings.Builder
	for _, v := range variables {
		name, value, ok := strings.Cut(v, "=")
		if !ok || !variableName.MatchString(name) {
			return "", usage("--env %q: write NAME=VALUE", v)
		}
		fmt.Fprintf(&text, "export %s=%s\n", name, shellquote.Join(value))
	}
	if dir != "" {
		fmt.Fprintf(&text, "cd -- %s || exit\n", shellquote.Join(dir))
	}
	return text.String(), nil
}

// exec runs text in a channel of its own on an SSH connection of its own. The output goes to env.
// The error is an exitError for an exit status other than 0.
func (env *Env) exec(ctx context.Context, name, text string, o execOptions) error {
	up, err := env.Hub.Relay.OpenAs(ctx, env.Principal, name, o.user, env.progress(o.asJSON))
	if err != nil {
		return err
	}
	client := up.Client()
	defer func() {
		client.Close()
		_ = client.Wait()
	}()
	count := &counter{}
	event := gateway.ExecEvent{Command: text, Exit: -1}
	command := connect.Command{Line: o.before + text, Stdout: count.tee(env.Stdout), Stderr: count.tee(env.Stderr)}
	if o.input {
		command.Stdin = env.Stdin
	}
	var term *gateway.Terminal // nil without one
	if o.tty {
		output := &recorded{to: command.Stdout}
		command.Pty, command.Stdout = env.Pty, output
		command.Ready = func() (err error) {
			term, err = env.Hub.Relay.Terminal(ctx, env.Principal, name, text, int(env.Pty.Cols), int(env.Pty.Rows))
			output.term = term
			return err
		}
		defer func() {
			if term != nil {
				term.Close(event.Exit)
			}
		}()
	}
	record := env.Hub.Relay.Recorder(env.Principal, name)
	running, err := connect.Start(ctx, client, command)
	if err != nil {
		return env.execError(ctx, name, err)
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() { // passes on what the caller's terminal does
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
	return env.execError(ctx, name, err)
}

// execError is the error of a command whose exit status is not known.
func (env *Env) execError(ctx context.Context, name string, err error) error {
	switch {
	case ctx.Err() != nil:
		return exitError(wire.ExitInterrupt)
	case errors.Is(err, connect.ErrNoTerminal):
		return wire.Errorf(wire.CodeUnavailable, "sandbox %s gives no terminal", name)
	case errors.Is(err, connect.ErrLost):
		return env.Hub.Relay.Lost(ctx, env.Principal, name)
	case errors.As(err, new(*wire.Error)):
		return err
	}
	return fmt.Errorf("exec in %s: %w", name, err)
}

// recorded writes to the record before the caller sees the output.
type recorded struct {
	term *gateway.Terminal // set before there is output
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
