package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// raw joins a session as a program does: the exact output, no status line, no prefix key. With
// fresh, it creates a session with a generated name, which ends with the channel.
func (s *session) raw(ctx context.Context, target wire.Target, fresh bool) {
	pty := s.ask.pty
	o := attach.JoinOptions{Fresh: fresh, Close: fresh, Cols: int(pty.Cols), Rows: int(pty.Rows),
		Term: pty.Term, Bare: fresh}
	for _, e := range s.ask.env {
		o.Env = append(o.Env, e.Name+"="+e.Value)
	}
	at, _, err := s.attach(ctx, target, o)
	if err != nil {
		s.fail(err)
		return
	}
	defer at.Close()
	s.begin()

	ctx, cancel := context.WithCancel(ctx)
	var from uint64
	if !fresh {
		// Before any input: output that it causes is the client's.
		from = promptStart(ctx, at.Live())
	}
	var parts sync.WaitGroup
	parts.Go(func() { s.rawRequests(ctx, at) })
	parts.Go(func() { s.rawInput(ctx, at) })
	parts.Go(func() {
		if err := at.Wait(ctx); !errors.Is(err, io.EOF) { // at EOF there may be unread output
			cancel()
		}
	})
	err = copyLog(ctx, s.channel, at.Live(), from)
	cancel()
	switch {
	case err == nil:
		s.exit(person.ExitOf(at.Live().State()))
	case errors.Is(at.Err(), interrupt.ErrDisconnected):
		s.complain("the owner disconnected you from " + at.Target().String())
		s.exit(wire.ExitTransport)
	default:
		if e := accessOver(ctx); e != nil {
			s.complain(e.Message)
		}
		s.exit(wire.ExitTransport)
	}
	parts.Wait()
}

// lookBack is how far before the end of the log a raw reader may begin.
const lookBack = 4 << 10

// promptStart returns where a program begins to read a running session: at the last line, so that
// it sees the current prompt.
func promptStart(ctx context.Context, l *live.Session) uint64 {
	end := l.Len()
	at := end - min(end, lookBack)
	start := at
	buf := make([]byte, lookBack)
	for at < end {
		n, err := l.ReadAt(ctx, at, buf[:min(end-at, lookBack)])
		var lagged *live.LaggedError
		switch {
		case errors.As(err, &lagged):
			at, start = lagged.To, lagged.To
			continue
		case err != nil || n == 0:
			return end
		}
		if i := bytes.LastIndexByte(buf[:n], '\n'); i >= 0 {
			start = at + uint64(i) + 1
		}
		at += uint64(n)
	}
	return min(start, end)
}

// copyLog copies a session's output to w, and returns nil when the session has ended.
func copyLog(ctx context.Context, w io.Writer, l *live.Session, at uint64) error {
	buf := make([]byte, 8<<10)
	for {
		n, err := l.ReadAt(ctx, at, buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			at += uint64(n)
		}
		var lagged *live.LaggedError
		switch {
		case errors.As(err, &lagged):
			at = lagged.To
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// rawInput passes the client's input on. If it is rejected, because another party has the keyboard,
// rawInput reports it once on stderr, and again after the next success.
func (s *session) rawInput(ctx context.Context, at *attach.Attachment) {
	src := s.input()
	buf := make([]byte, 4<<10)
	said := false
	for {
		n, err := src.Read(buf)
		if n > 0 {
			var refused *wire.Error
			switch err := at.Input(ctx, buf[:n]); {
			case err == nil:
				said = false
			case errors.As(err, &refused):
				if !said {
					s.complain("input rejected: " + refused.Message)
				}
				said = true
			default:
				return
			}
		}
		if err != nil {
			return // EOF ends the input; the terminal stays open
		}
	}
}

// complain writes a message to stderr, apart from the terminal's output.
func (s *session) complain(line string) {
	s.ending.Lock()
	defer s.ending.Unlock()
	_, _ = fmt.Fprintf(s.channel.Stderr(), "sandboxd: %s\r\n", plain(line))
}

// rawRequests handles changes of the size of the client's terminal.
func (s *session) rawRequests(ctx context.Context, at *attach.Attachment) {
	for q := range s.channel.Requests {
		ok := false
		if q.Type == wire.RequestWindowChange {
			if w, parsed := parseWindow(q.Payload); parsed {
				ok = at.Resize(ctx, int(w.Cols), int(w.Rows)) == nil
			}
		}
		_ = q.Reply(ok, nil)
	}
}
