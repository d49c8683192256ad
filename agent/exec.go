package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Cmd is a command to run without a session: it is a separate process with its own stdout, stderr
// and exit code.
type Cmd struct {
	Command        string    // shell code, run by the login shell of the sandbox's user
	Stdin          io.Reader // nil is empty
	Stdout, Stderr io.Writer // nil discards the output
	// Env adds environment variables. A sandbox accepts LANG, LC_*, TERM, COLORTERM and
	// GIT_PROTOCOL. A variable that the server rejects is an error.
	Env     map[string]string
	Pty     *Pty          // runs the command in a terminal; Stdout then receives stderr, too
	Resized <-chan Size   // new sizes of the terminal
	Signals <-chan string // signals to send to the command, by name without SIG
}

// Pty describes the terminal of a command.
type Pty struct {
	Term string // TERM, such as xterm-256color
	Cols int
	Rows int
}

// Size is the size of a terminal, in characters.
type Size struct{ Cols, Rows int }

// Exit is how a command ended.
type Exit struct {
	Code   int    // exit status; 128 + n after signal n
	Signal string // name without SIG of the signal that ended it; empty if none did
}

// Exec runs a command and waits until it ends. A command that fails is not an error: Exit has its
// status. If ctx ends first, Exec closes the channel, which sends HUP to the command, and returns
// the cause of ctx. If the connection ends first, the error has code lost: the command may have
// run. Exec does not write to Stdout and Stderr after it has returned.
func (c *Client) Exec(ctx context.Context, cmd Cmd) (Exit, error) {
	exit, err := c.exec(ctx, cmd)
	return exit, public(err)
}

func (c *Client) exec(ctx context.Context, cmd Cmd) (Exit, error) {
	channel, err := c.channel(ctx, wire.ChannelSession, nil)
	if err == nil {
		err = cmd.run(ctx, channel)
	}
	exit, ended := errors.AsType[*connect.ExitError](err)
	switch {
	case err == nil:
		return Exit{}, nil
	case ended:
		return Exit{Code: exit.Status, Signal: exit.Signal}, nil
	case errors.Is(err, connect.ErrLost):
		return Exit{}, c.lostExec()
	}
	return Exit{}, fmt.Errorf("exec in %s: %w", c.name, err)
}

// run runs the command on channel. Its errors are those of connect.Run.
func (cmd Cmd) run(ctx context.Context, channel *sshconn.Channel) error {
	c := connect.Command{
		Line:   cmd.Command,
		Stdin:  cmd.Stdin,
		Stdout: cmd.Stdout,
		Stderr: cmd.Stderr,
	}
	for name, value := range cmd.Env {
		c.Env = append(c.Env, name+"="+value)
	}
	if cmd.Pty != nil {
		c.Pty = &wire.PtyReq{
			Term: cmd.Pty.Term,
			Cols: uint32(cmd.Pty.Cols),
			Rows: uint32(cmd.Pty.Rows),
		}
	}
	running, err := connect.StartOn(ctx, channel, c)
	if err != nil {
		return err
	}
	ended, passed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(passed)
		cmd.pass(running, ended)
	}()
	err = running.Wait()
	close(ended)
	<-passed
	return err
}

// lostExec returns the error for a command whose connection ended before the command did.
func (c *Client) lostExec() *Error {
	reason := wire.LostGateway
	if c.machine != nil {
		reason = wire.LostHost
	}
	return newError(
		wire.LostError(reason, "exec in "+c.name+": the connection ended before the command did"),
	)
}

// pass sends signals and terminal sizes to the command until it ends.
func (cmd Cmd) pass(running *connect.Running, ended <-chan struct{}) {
	for {
		select {
		case w, ok := <-cmd.Resized:
			if !ok {
				cmd.Resized = nil
				continue
			}
			// An error means that the command has ended.
			_ = running.Resize(wire.WindowChange{Cols: uint32(w.Cols), Rows: uint32(w.Rows)})
		case name, ok := <-cmd.Signals:
			if !ok {
				cmd.Signals = nil
				continue
			}
			_ = running.Signal(name) // likewise
		case <-ended:
			return
		}
	}
}
