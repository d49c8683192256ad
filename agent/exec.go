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

// Cmd is a command without a session: its own process, separate stdout and stderr, an exact exit code.
type Cmd struct {
	Command        string // run by the sandbox user's shell
	Stdin          io.Reader
	Stdout, Stderr io.Writer         // nil discards
	Env            map[string]string // LANG, LC_*, TERM, COLORTERM and GIT_PROTOCOL reach the command
	Pty            *Pty              // a terminal of its own; stdout and stderr are one then
	Resized        <-chan Size       // changes of the terminal's size
	Signals        <-chan string     // names without SIG, passed on to the command
}

// Pty is a terminal for a command.
type Pty struct {
	Term string // TERM, such as xterm-256color
	Cols int
	Rows int
}

// Size is the size of a terminal.
type Size struct{ Cols, Rows int }

// Exit is how a command ended.
type Exit struct {
	Code   int    // exit status; 128+n after a signal
	Signal string // without SIG, empty when it exited
}

// Exec runs a command and waits for it. When ctx ends first the command gets HUP by the end of its channel, and ctx's cause
// is returned. Where the connection ends first the error has code lost: the command may have run. Stdout and Stderr are not written to after Exec has returned.
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

// run runs the command on a channel. Errors are those of connect.Run.
func (cmd Cmd) run(ctx context.Context, channel *sshconn.Channel) error {
	c := connect.Command{Line: cmd.Command, Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr}
	for name, value := range cmd.Env {
		c.Env = append(c.Env, name+"="+value)
	}
	if cmd.Pty != nil {
		c.Pty = &wire.PtyReq{Term: cmd.Pty.Term, Cols: uint32(cmd.Pty.Cols), Rows: uint32(cmd.Pty.Rows)}
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

// lostExec is the error of a command that may have run, and of which nothing more is known.
func (c *Client) lostExec() *Error {
	reason := wire.LostGateway
	if c.machine != nil {
		reason = wire.LostHost
	}
	return newError(wire.LostError(reason, "exec in "+c.name+": the connection ended before the command did"))
}

// pass tells the command of signals and sizes until it has ended.
func (cmd Cmd) pass(running *connect.Running, ended <-chan struct{}) {
	for {
		select {
		case w, ok := <-cmd.Resized:
			if !ok {
				cmd.Resized = nil
				continue
			}
			_ = running.Resize(wire.WindowChange{Cols: uint32(w.Cols), Rows: uint32(w.Rows)}) // too late is no error
		case name, ok := <-cmd.Signals:
			if !ok {
				cmd.Signals = nil
				continue
			}
			_ = running.Signal(name) // the same
		case <-ended:
			return
		}
	}
}
