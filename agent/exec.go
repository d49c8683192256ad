package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"

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
	session, err := opened(ctx, c, (*ssh.Client).NewSession)
	if err != nil {
		return Exit{}, fmt.Errorf("exec in %s: %w", c.name, err)
	}
	stdout, stderr := &gate{w: cmd.Stdout}, &gate{w: cmd.Stderr}
	defer stdout.shut()
	defer stderr.shut()
	session.Stdin = cmd.Stdin
	if cmd.Stdout != nil {
		session.Stdout = stdout
	}
	if cmd.Stderr != nil {
		session.Stderr = stderr
	}
	type answer struct {
		exit Exit
		err  error
	}
	answered := make(chan answer, 1)
	go func() { // ends with the channel, at the latest with the connection
		exit, err := cmd.run(session)
		session.Close()
		answered <- answer{exit, err}
	}()
	select {
	case a := <-answered:
		if errors.Is(a.err, errNoEnd) {
			return Exit{}, c.lostExec()
		}
		if a.err != nil {
			return Exit{}, fmt.Errorf("exec in %s: %w", c.name, a.err)
		}
		return a.exit, nil
	case <-ctx.Done():
		go session.Close() // on a dead connection it blocks until that is known
		return Exit{}, fmt.Errorf("exec in %s: %w", c.name, context.Cause(ctx))
	}
}

func (cmd Cmd) run(session *ssh.Session) (Exit, error) {
	for name, value := range cmd.Env {
		if err := session.Setenv(name, value); err != nil {
			return Exit{}, fmt.Errorf("environment variable %s: %w", name, err)
		}
	}
	if cmd.Pty != nil {
		ok, err := session.SendRequest(wire.RequestPty, true, wire.Marshal(wire.PtyReq{Term: cmd.Pty.Term, Cols: uint32(cmd.Pty.Cols), Rows: uint32(cmd.Pty.Rows)}))
		if err == nil && !ok {
			err = errors.New("refused")
		}
		if err != nil {
			return Exit{}, fmt.Errorf("terminal: %w", err)
		}
	}
	if err := session.Start(cmd.Command); err != nil {
		if errors.Is(err, io.EOF) { // the request was sent, and not answered
			return Exit{}, errNoEnd
		}
		return Exit{}, err
	}
	ended, passed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(passed)
		cmd.pass(session, ended)
	}()
	err := session.Wait()
	close(ended)
	<-passed
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return Exit{}, nil
	case errors.As(err, &exit):
		return Exit{Code: exit.ExitStatus(), Signal: exit.Signal()}, nil
	case cmd.Stdin != nil && err == io.EOF: //nolint:errorlint // of the library's own Write, as it is
		// It ended with 0 and did not read all of its input: that came too late for the channel.
		return Exit{}, nil
	}
	return Exit{}, errNoEnd
}

// errNoEnd is the error of a command that was sent and whose end was not reported.
var errNoEnd = errors.New("the connection ended before the command")

// lostExec is the error of a command that may have run, and of which nothing more is known.
func (c *Client) lostExec() *Error {
	reason := wire.LostGateway
	if c.machine != nil {
		reason = wire.LostHost
	}
	return newError(wire.LostError(reason, "exec in "+c.name+": the connection ended before the command did"))
}

// pass tells the command of signals and sizes until it has ended.
func (cmd Cmd) pass(session *ssh.Session, ended <-chan struct{}) {
	for {
		select {
		case w, ok := <-cmd.Resized:
			if !ok {
				cmd.Resized = nil
				continue
			}
			_, _ = session.SendRequest(wire.RequestWindowChange, false, wire.Marshal(wire.WindowChange{Cols: uint32(w.Cols), Rows: uint32(w.Rows)})) // too late is no error
		case name, ok := <-cmd.Signals:
			if !ok {
				cmd.Signals = nil
				continue
			}
			_ = session.Signal(ssh.Signal(name)) // the same
		case <-ended:
			return
		}
	}
}

// gate passes on what is written until it is shut.
type gate struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu; nil once shut
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.w == nil {
		return len(p), nil
	}
	return g.w.Write(p)
}

// shut returns when no write is under way any more.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.w = nil
}
