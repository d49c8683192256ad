package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	writeTime  = 5 * time.Second // how long a program may not read before its input is rejected
	writeChunk = 4 << 10         // about how much a terminal accepts in one write
	// maximal canonical line without its newline (termios(3), Canonical and noncanonical mode)
	maxLineLen = 4095
)

// write is a running write to the terminal.
type write struct {
	key       string        // of the party
	term      Terminal      // terminal of the write
	done      chan struct{} // closed when it is over
	abandoned error         // guarded by session.mu
}

var (
	errTaken   = errors.New("the keyboard was taken")
	errDropped = errors.New("dropped by an interrupt")
)

// writer writes input to the terminal, for one party at a time.
type writer struct {
	s   *session
	sem chan struct{} // semaphore: one party writes to the terminal

	present *write // guarded by session.mu; the running write; nil if there is none
	paste   paste  // guarded by session.mu
}

// endLocked makes a write return without the rest of its bytes. It uses the write's own terminal,
// because the session may have another one.
func (w *write) endLocked(why error) {
	if w.abandoned == nil {
		w.abandoned = why
	}
	_ = w.term.SetWriteDeadline(time.Unix(1, 0))
}

// lock acquires the semaphore.
func (w *writer) lock(ctx context.Context) error {
	s := w.s
	select {
	case w.sem <- struct{}{}:
		return nil
	default:
	}
	select {
	case w.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ctx.Done():
		return errClosed
	}
}

func (w *writer) unlock() { <-w.sem }

// put writes bytes of p, who must hold the keyboard, and returns how many the terminal accepted.
// They are only for the shell on want, or for any shell if want is nil. begin, if not nil, is
// called with mu held directly before the first byte. Results of the prober do not count from then
// until put returns. The caller holds the semaphore.
func (w *writer) put(
	ctx context.Context,
	p *party,
	want *console,
	data []byte,
	begin func(),
) (n int, err error) {
	s := w.s
	if err := w.awaitBrackets(ctx, p); err != nil {
		return 0, err
	}
	s.mu.Lock()
	switch {
	case !s.aliveLocked(), want != nil && want != s.console:
		s.mu.Unlock()
		return 0, deadError(s.name)
	case !s.keyboard.Holds(&p.Party):
		err := s.keyboard.Refusal()
		s.mu.Unlock()
		return 0, err
	}
	c := s.console
	broken := w.pasteBrokenLocked(p, c)
	now := &write{key: p.Key, term: c.term, done: make(chan struct{})}
	w.present = now
	c.track.Writes()
	c.track.Typed()
	c.track.Was(track.Reader{}) // begin may set another one
	if begin != nil {
		begin()
	}
	hidden := hides(c)
	if s.track.Phase() == wire.PhasePrompt {
		c.typist = p
	}
	c.ahead.typed(p, data)
	// Before the first byte, because the shell may be at its next prompt before the write has
	// returned.
	w.takenLocked(data)
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.present == now {
			now.endLocked(context.Cause(ctx))
		}
	})

	if broken {
		_ = c.term.SetWriteDeadline(time.Now().Add(writeTime))
		_, err = c.term.Write([]byte(pasteEnd))
	}
	for n < len(data) && err == nil {
		s.mu.Lock()
		if err = now.abandoned; err == nil {
			// Under mu, so that a deadline that abandons this write is set later.
			err = c.term.SetWriteDeadline(time.Now().Add(writeTime))
		}
		s.mu.Unlock()
		if err != nil {
			break
		}
		var k int
		k, err = c.term.Write(data[n:min(n+writeChunk, len(data))])
		n += k
	}
	stop()

	s.mu.Lock()
	defer s.mu.Unlock()
	if now.abandoned != nil && n < len(data) {
		err = now.abandoned
	}
	w.present = nil
	w.pastedLocked(p, c, data[:n])
	s.track.Wrote(time.Now())
	if n > 0 {
		s.events.countInputLocked(p.String(), n, hidden)
	}
	close(now.done)
	if n == len(data) {
		return n, nil
	}
	return n, w.shortLocked(err)
}

// hides reports whether the terminal is in canonical mode without echo, as for a password. It
// returns false for a terminal on another machine.
func hides(c *console) bool {
	if c.local == nil {
		return false
	}
	m := inputModes(c.local.TTY().Master)
	return m.Lines && !m.Echo
}

// shortLocked returns the error of partly accepted input.
func (w *writer) shortLocked(err error) error {
	s := w.s
	switch {
	case errors.Is(err, errTaken):
		return s.keyboard.Refusal()
	case errors.Is(err, errDropped):
		return &wire.Error{Code: wire.CodeLost, Message: "input was " + errDropped.Error()}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &wire.Error{
			Code:    wire.CodeUnavailable,
			Message: fmt.Sprintf("the program has not read its input for %s", writeTime),
			Hint:    "interrupt it, or wait until it reads",
		}
	case errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, os.ErrClosed),
		errors.Is(err, syscall.EIO): // the terminal has ended, which will be reported soon
		return deadError(s.name)
	}
	return err
}

func deadError(name string) *wire.Error {
	return &wire.Error{
		Code:    wire.CodeUnavailable,
		Message: "the shell of session " + name + " has ended",
		Hint:    "join it or run a command: both start a new shell",
	}
}

// takenLocked marks the state as outdated by input p.
func (w *writer) takenLocked(p []byte) {
	s := w.s
	if c := s.console; s.track.Counts().Prompted == 0 {
		c.struck = c.struck || bytes.IndexByte(p, 3) >= 0
		c.entered = c.entered || bytes.ContainsAny(p, "\r\n")
	}
	for _, ev := range s.track.Input(p, s.display.calls.Load(), s.momentLocked(s.console)).Events {
		s.private.veilLocked(ev.State)
		s.events.emitLateLocked(ev)
	}
	s.keyboard.freeLaterLocked()
}
