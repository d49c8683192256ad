package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func execCommand(env *Env) *cobra.Command {
	var input, tty bool
	cmd := &cobra.Command{
		Use:   "exec [-i] [-t] NAME [--] CMD…",
		Short: "run a command without a session",
		Long: "Run a command as a process of its own: separate stdout and stderr, the exact exit code, no terminal unless -t.\n" +
			"One argument is shell text, several are a program and its arguments. The command line of sandboxd shows output on a terminal\n" +
			"as text, without colours and control sequences; -t, and a pipe or a file, get the exact bytes.",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := wire.ParseLabel("sandbox name", args[0])
			if err != nil {
				return err
			}
			if tty && env.Pty == nil {
				return &wire.Error{Code: wire.CodeUsage, Message: "exec -t needs a terminal", Hint: "leave out -t"}
			}
			words := afterDashes(args[1:])
			if len(words) == 0 {
				return usage("exec: no command")
			}
			text := words[0]
			if len(words) > 1 {
				text = shellquote.Join(words...)
			}
			return env.exec(cmd.Context(), name, text, input || tty, tty)
		},
	}
	cmd.Flags().BoolVarP(&input, "interactive", "i", false, "pass standard input on")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "with a terminal of its own, which is recorded")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// exec runs text in a channel of its own on an SSH connection of its own.
func (env *Env) exec(ctx context.Context, name, text string, input, tty bool) error {
	up, err := env.Hub.Upstream(ctx, env.Principal, name, env.progress(false))
	if err != nil {
		return err
	}
	client := ssh.NewClient(up.Conn, up.Chans, up.Reqs)
	defer func() {
		client.Close()
		_ = client.Wait()
	}()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	session, err := client.NewSession()
	if err != nil {
		return fmt.Errorf("exec in %s: %w", name, err)
	}
	defer session.Close()
	count := &counter{}
	session.Stdout, session.Stderr = count.tee(env.Stdout), count.tee(env.Stderr)
	event := gateway.ExecEvent{Command: text, Exit: -1}
	var term *gateway.Terminal // nil without one
	if input {
		session.Stdin = env.Stdin
	}
	if tty {
		ok, err := session.SendRequest(wire.RequestPty, true, wire.Marshal(env.Pty))
		if err != nil {
			return fmt.Errorf("exec in %s: terminal: %w", name, err)
		}
		if !ok {
			return wire.Errorf(wire.CodeUnavailable, "sandbox %s gives no terminal", name)
		}
		if term, err = env.Hub.Terminal(ctx, env.Principal, name, text, int(env.Pty.Cols), int(env.Pty.Rows)); err != nil {
			return err
		}
		defer func() { term.Close(event.Exit) }()
		session.Stdout = recorded{term, session.Stdout}
	}
	if err := session.Start(text); err != nil {
		if gone(client) {
			return env.Hub.Lost(ctx, env.Principal, name)
		}
		return fmt.Errorf("exec in %s: %w", name, err)
	}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() { // passes on what the caller's terminal does
		defer close(done)
		for {
			select {
			case w := <-env.Resized:
				if tty {
					term.Resize(int(w.Cols), int(w.Rows))
					_, _ = session.SendRequest(wire.RequestWindowChange, false, wire.Marshal(w))
				}
			case <-env.Interrupts:
				_ = session.Signal(ssh.SIGINT)
			case <-ended:
				return
			}
		}
	}()
	err = session.Wait()
	close(ended)
	<-done
	event.Bytes = count.total()
	var exit *ssh.ExitError
	switch {
	case err == nil:
		event.Exit = 0
	case errors.As(err, &exit):
		event.Exit = exit.ExitStatus()
	}
	env.Hub.Record(context.WithoutCancel(ctx), env.Principal, name, event)
	switch {
	case err == nil:
		return nil
	case exit != nil:
		return exitError(event.Exit)
	}
	if ctx.Err() != nil {
		return exitError(wire.ExitInterrupt)
	}
	if errors.As(err, new(*ssh.ExitMissingError)) || gone(client) {
		return env.Hub.Lost(ctx, env.Principal, name)
	}
	return fmt.Errorf("exec in %s: %w", name, err)
}

// answersWithin is how long a sandbox may take to answer when a command on a connection to it failed.
const answersWithin = 5 * time.Second

// gone reports whether a connection has ended, as far as is known.
func gone(client *ssh.Client) bool {
	answered := make(chan error, 1)
	go func() { // ends with the connection, which the caller closes
		_, _, err := client.SendRequest(wire.GlobalKeepalive, true, nil)
		answered <- err
	}()
	select {
	case err := <-answered:
		return err != nil
	case <-time.After(answersWithin):
		return false
	}
}

// recorded writes to the record before anybody sees it.
type recorded struct {
	term *gateway.Terminal
	to   io.Writer
}

func (r recorded) Write(p []byte) (int, error) {
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
