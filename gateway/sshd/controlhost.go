package sshd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"

	"github.com/kballard/go-shellquote"

	"github.com/sandboxd/sandboxd/gateway/player"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// controlHost serves logins to the control host: a command of the table, or the list if a person
// gives none.
func (s *session) controlHost(ctx context.Context) {
	if s.ask.kind == wire.RequestShell {
		if s.ask.pty == nil {
			s.fail(&wire.Error{Code: wire.CodeUsage, Message: "no command",
				Hint: "use a command such as ls, new NAME or help"})
			return
		}
		s.pick(ctx)
		return
	}
	args, err := shellquote.Split(s.ask.arg)
	if err != nil {
		s.fail(wire.Errorf(wire.CodeUsage, "command line: %v", err))
		return
	}
	if s.ask.pty != nil && s.client.server.options.Watches != nil {
		if target, ok := s.client.server.options.Watches(args); ok {
			s.join(ctx, target, true)
			return
		}
	}
	s.begin()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resized, interrupts := make(chan wire.WindowChange, 1), make(chan struct{}, 1)
	c := CommandIO{Args: args, Stdin: s.input(), Stdout: s.channel, Stderr: s.channel.Stderr(),
		Reached: reached(s.client.conn.LocalAddr(), s.client.conn.RemoteAddr()),
		Pty:     s.ask.pty, Resized: resized, Interrupts: interrupts}
	if s.ask.pty != nil {
		// The client's terminal is raw: the server does what a terminal's line discipline would.
		out := newlines{s.channel}
		c.Stdout, c.Stderr = out, out
		// Input is read whether the command reads it or not, so that ^C works.
		typed := &turns{chunks: make(chan []byte, maxAhead)}
		go typed.watch(s.input(), func() { cancel(errInterrupted) }) // ends with the channel
		c.Stdin = &turn{ctx: context.Background(), from: typed}
		c.Draw = func(cols, rows int) *player.Canvas {
			return player.NewCanvas(s.channel, cols, rows, int(s.ask.pty.Cols), int(s.ask.pty.Rows),
				resized)
		}
	}
	go s.commandRequests(resized, interrupts) // ends with the channel
	status := s.client.server.options.Commands(ctx, s.client.grant.Principal, c)
	switch {
	case s.expelled(ctx):
		return
	case errors.Is(context.Cause(ctx), errInterrupted):
		status = wire.ExitInterrupt
	}
	s.exit(status)
}

// commandRequests handles a client's requests while its command runs.
func (s *session) commandRequests(resized chan wire.WindowChange, interrupts chan<- struct{}) {
	for q := range s.channel.Requests {
		ok := false
		var signal wire.Signal
		switch q.Type {
		case wire.RequestWindowChange:
			var w wire.WindowChange
			if w, ok = parseWindow(q.Payload); ok {
				select { // only the latest size matters
				case <-resized:
				default:
				}
				resized <- w
			}
		case wire.RequestSignal:
			if ok = wire.Unmarshal(q.Payload, &signal) == nil && signal.Name == "INT"; ok {
				select {
				case interrupts <- struct{}{}:
				default: // one is pending already
				}
			}
		}
		_ = q.Reply(ok, nil)
	}
}

// errInterrupted is the cause when a person typed ^C.
var errInterrupted = errors.New("interrupted")

// newlines writes \n as \r\n, as a terminal's line discipline would.
type newlines struct{ to io.Writer }

func (w newlines) Write(p []byte) (int, error) {
	if bytes.IndexByte(p, '\n') < 0 {
		return w.to.Write(p)
	}
	if _, err := w.to.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// reached returns local, unless remote is on this machine, too.
func reached(local, remote net.Addr) netip.AddrPort {
	l, ok := local.(*net.TCPAddr)
	r, also := remote.(*net.TCPAddr)
	if !ok || !also || r.IP.IsLoopback() || r.IP.Equal(l.IP) {
		return netip.AddrPort{}
	}
	at := l.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()) // a zone is of one machine
}
