package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Errors of a command, in addition to ExitError.
var (
	// ErrLost: the channel or the connection ended before the server reported the end of the
	// command.
	ErrLost = errors.New("the connection ended before the command")
	// ErrNoTerminal: the server rejected the terminal. Nothing was started.
	ErrNoTerminal = errors.New("no terminal is available")
	// ErrNotStarted: the server rejected the command.
	ErrNotStarted = errors.New("the server rejected the command")
	// ErrTooMuch: the command printed more than Output returns.
	ErrTooMuch = errors.New("the command printed too much")
)

// ExitError is a command that ended by a signal or with an exit status other than 0.
type ExitError struct {
	Status int    // exit status; 128 + n after signal n
	Signal string // name without SIG of the signal that ended it; empty if none did
}

func (e *ExitError) Error() string {
	if e.Signal != "" {
		return "ended by signal " + printable(e.Signal, 20)
	}
	return fmt.Sprintf("exit status %d", e.Status)
}

// Command is a command to run in a new session channel. Only Line is required.
type Command struct {
	Line string   // shell code for the account's shell
	Env  []string // NAME=value; a variable that the server rejects is an error
	// Pty is the terminal to run on; nil means pipes. A terminal has no Stderr.
	Pty *wire.PtyReq
	// Stdin is the command's standard input; nil is empty. Wait does not wait for a blocked Read.
	Stdin io.Reader
	// Stdout and Stderr receive the output; nil discards it. They are written to concurrently, and
	// never after Wait has returned. A failed Write ends the command with that error.
	Stdout, Stderr io.Writer
	// Ready is called when the server has granted the terminal, before the command starts. If it
	// fails, nothing starts and Start returns its error. Nil does nothing.
	Ready func() error
}

// Run runs c on conn until it has ended and its output is written. nil means exit status 0. Errors
// are *ExitError, ErrLost, the cause of ctx, and those of Start.
//
// When ctx ends, Run closes the channel, and the server sends HUP to the command. conn stays open:
// if the server does not close the channel, its memory is used until the caller closes conn.
func Run(ctx context.Context, conn ssh.Conn, c Command) error {
	r, err := Start(ctx, conn, c)
	if err != nil {
		return err
	}
	return r.Wait()
}

// Output runs a command line and returns the first limit bytes of its standard output, also with an
// error. Standard error is discarded. If the command prints more than limit bytes on either, it
// receives HUP and the error is ErrTooMuch. Other errors are those of Run.
func Output(ctx context.Context, conn ssh.Conn, line string, limit int) ([]byte, error) {
	out := &head{limit: limit}
	err := Run(ctx, conn, Command{Line: line, Stdout: out, Stderr: &head{limit: limit}})
	return out.kept, err
}

// head keeps the first bytes that are written to it.
type head struct {
	limit int
	kept  []byte
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.limit-len(h.kept))
	h.kept = append(h.kept, p[:n]...)
	if n < len(p) {
		return n, ErrTooMuch
	}
	return n, nil
}

// Running is a started command. Its methods are safe for concurrent use.
type Running struct {
	channel *sshconn.Channel
	done    chan struct{} // closed when err is set

	mu    sync.RWMutex // read-locked while output is written
	ended bool         // guarded by mu
	err   error        // guarded by mu; set once
}

// Start starts c on conn; see Run. ctx bounds the command, not only its start. Errors:
// ErrNoTerminal, ErrNotStarted, *ssh.OpenChannelError, ErrLost, the error of c.Ready, and the cause
// of ctx.
func Start(ctx context.Context, conn ssh.Conn, c Command) (*Running, error) {
	channel, err := sshconn.Open(ctx, conn, wire.ChannelSession, nil)
	switch {
	case errors.Is(err, sshconn.ErrEnded):
		return nil, ErrLost
	case err != nil:
		return nil, err
	}
	return StartOn(ctx, channel, c)
}

// StartOn is Start on a session channel that is only for the command.
func StartOn(ctx context.Context, channel *sshconn.Channel, c Command) (*Running, error) {
	r := &Running{channel: channel, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { r.end(context.Cause(ctx)) })
	var copies sync.WaitGroup
	copies.Go(func() { r.copy(c.Stdout, channel) })
	copies.Go(func() { r.copy(c.Stderr, channel.Stderr()) }) // a full stderr blocks stdout, too
	go func() {                                              // ends with the channel
		defer stop()
		err := exitOf(channel.Requests)
		copies.Wait()
		r.end(err)
	}()
	if err := r.start(ctx, c); err != nil {
		r.end(err)
		return nil, err
	}
	go func() { // ends with Stdin, or with the first write after the end of the channel
		if c.Stdin != nil {
			_, _ = io.Copy(channel, c.Stdin) // the command may not read it
		}
		_ = channel.CloseWrite()
	}()
	return r, nil
}

// start makes the requests that start c.
func (r *Running) start(ctx context.Context, c Command) error {
	if c.Pty != nil {
		if err := r.request(ctx, wire.RequestPty, wire.Marshal(*c.Pty), ErrNoTerminal); err != nil {
			return err
		}
	}
	for _, kv := range c.Env {
		name, value, _ := strings.Cut(kv, "=")
		refused := fmt.Errorf("environment variable %s: rejected by the server", name)
		if err := r.request(ctx, wire.RequestEnv, wire.Marshal(wire.Env{Name: name, Value: value}),
			refused); err != nil {
			return err
		}
	}
	if c.Ready != nil {
		if err := c.Ready(); err != nil {
			return err
		}
	}
	return r.request(ctx, wire.RequestExec, wire.Marshal(wire.Exec{Command: c.Line}), ErrNotStarted)
}

// request makes a request. If the server rejects it, the error is refused.
func (r *Running) request(ctx context.Context, name string, payload []byte, refused error) error {
	ok, err := r.channel.Request(ctx, name, payload)
	switch {
	case errors.Is(err, sshconn.ErrEnded):
		return ErrLost
	case err == nil && !ok:
		return refused
	}
	return err
}

// exitOf receives all requests of a channel and returns how the command ended.
func exitOf(requests <-chan *ssh.Request) error {
	err := ErrLost
	for q := range requests {
		_ = q.Reply(false, nil)
		var status wire.ExitStatus
		var signal wire.ExitSignal
		switch {
		case q.Type == wire.RequestExitStatus && wire.Unmarshal(q.Payload, &status) == nil:
			if err = nil; status.Status != 0 {
				err = &ExitError{Status: int(status.Status)}
			}
		case q.Type == wire.RequestExitSignal && wire.Unmarshal(q.Payload, &signal) == nil:
			err = &ExitError{Status: 128 + wire.SignalNumber(signal.Signal), Signal: signal.Signal}
		}
	}
	return err
}

// copy copies all output. It discards unwanted output, which would block the channel.
func (r *Running) copy(dst io.Writer, src io.Reader) {
	if dst != nil {
		if _, err := io.Copy(outputWriter{dst, r}, src); err != nil {
			r.end(err)
		}
	}
	_, _ = io.Copy(io.Discard, src)
}

// outputWriter writes output until the command has ended.
type outputWriter struct {
	io.Writer
	of *Running
}

func (w outputWriter) Write(p []byte) (int, error) {
	w.of.mu.RLock()
	defer w.of.mu.RUnlock()
	if w.of.ended {
		return 0, w.of.err
	}
	return w.Writer.Write(p)
}

// end sets how the command ended, the first time, and closes the channel.
func (r *Running) end(err error) {
	go r.channel.Close() // on a dead connection, Close blocks until the keepalive fails
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		r.ended, r.err = true, err
		close(r.done)
	}
}

// Wait waits until the command has ended. Its errors are those of Run. It may be called repeatedly.
func (r *Running) Wait() error {
	<-r.done
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.err
}

// Signal sends a signal, named without SIG, to the command. An error means that the channel has
// ended.
func (r *Running) Signal(name string) error {
	_, err := r.channel.SendRequest(
		wire.RequestSignal,
		false,
		wire.Marshal(wire.Signal{Name: name}),
	)
	return err
}

// Resize changes the size of the command's terminal. An error means that the channel has ended.
func (r *Running) Resize(w wire.WindowChange) error {
	_, err := r.channel.SendRequest(wire.RequestWindowChange, false, wire.Marshal(w))
	return err
}
