package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// typing sends text or keys to the program and waits for the effect.
func (s *session) typing(ctx context.Context, o *op, p *party, r wire.Request) *wire.Result {
	f := s.newCall(r)
	f.key, f.keys = p.Key, r.Verb == wire.VerbKeys
	ctx, cancel := bound(ctx, r.TimeoutMS)
	defer cancel()
	if !s.alive() { // a new shell would run the input as a command
		return f.refused(deadError(s.name))
	}
	if err := f.begun(ctx); err != nil {
		return f.refused(err)
	}
	s.mu.Lock()
	c := s.console
	s.mu.Unlock()
	data, err := f.inputOf(ctx, r)
	if err != nil {
		return f.refused(err)
	}
	undo, err := f.await(ctx, p, r.Hold)
	if err != nil {
		return f.refused(err)
	}
	if r.Answer {
		if err := f.awaitQuestion(ctx); err != nil {
			undo()
			return f.refused(err)
		}
	}
	if err := s.writer.lock(ctx); err != nil {
		undo()
		return f.refused(err)
	}
	f.noteJobs()
	var before track.Reader
	asks := true
	if r.Answer {
		before, asks = f.stillAsks(ctx)
	} else {
		before = f.baseline()
	}
	if !asks && ctx.Err() == nil {
		s.writer.unlock()
		undo()
		return f.refused(
			&wire.Error{
				Code: wire.CodeNotWaiting,
				Message: "no program asks any more: another party was faster, or the program did " +
					"not wait",
				Hint: "check what it does now: wait",
			},
		)
	}
	if ctx.Err() != nil {
		s.writer.unlock()
		undo()
		return f.refused(context.Cause(ctx))
	}
	n, err := s.writer.put(ctx, p, c, data, func() {
		o.typed = true
		f.beginLocked()
		s.track.Was(before)
	})
	s.writer.unlock()
	if err != nil {
		s.mu.Lock()
		taken := f.taken
		s.mu.Unlock()
		if n == 0 {
			undo()
		}
		if f.c == nil {
			return f.refused(err)
		}
		if taken == "" {
			if n == 0 {
				res := f.result(wire.Refused)
				res.Error = s.public(err)
				return res
			}
			return f.partly(f.partlyError(err, n, len(data)))
		}
	}
	return f.result(f.wait(ctx))
}

// partlyError returns the error of a lost call whose input was accepted only up to n bytes, because
// of err.
func (f *call) partlyError(err error, n, all int) *wire.Error {
	s := f.s
	return wire.LostError(
		wire.LostPartly,
		fmt.Sprintf("%s (%d of %d bytes were taken)", s.public(err).Message, n, all),
	)
}

// partly returns the Result of f, which is lost because of why.
func (f *call) partly(why *wire.Error) *wire.Result {
	res := f.result(wire.Lost)
	res.Error = why
	res.Notes = append(res.Notes, why.Reason)
	return res
}

// inputOf returns the bytes that type or keys sends.
func (f *call) inputOf(ctx context.Context, r wire.Request) ([]byte, error) {
	s := f.s
	var data []byte
	if r.Verb == wire.VerbKeys {
		_, end := s.log.bounds()
		if err := s.display.sync(ctx, end); err != nil {
			return nil, err
		}
		app := s.display.modes().AppCursor
		for _, name := range r.Keys {
			k, err := keyBytes(name, app)
			if err != nil {
				return nil, err
			}
			data = append(data, k...)
		}
	} else {
		data = []byte(r.Text)
		if !r.Raw {
			data = append(data, '\r')
		}
	}
	if len(data) == 0 {
		return nil, wire.Errorf(wire.CodeUsage, "nothing to type")
	}
	return data, f.checkLines(ctx, data)
}

// lineEditor is how long to wait for a running program to leave canonical mode before a long line
// is rejected: a shell that starts or returns to its prompt does so.
const lineEditor = 3 * time.Second

// checkLines rejects a line that a terminal in canonical mode would silently truncate.
func (f *call) checkLines(ctx context.Context, data []byte) error {
	long, length := 0, 0
	for _, b := range data {
		if length++; b == '\r' || b == '\n' {
			length = 0
		}
		long = max(long, length)
	}
	if long <= maxLineLen || !f.staysCanonical(ctx) {
		return nil
	}
	return &wire.Error{
		Code: wire.CodeLineTooLong,
		Message: fmt.Sprintf(
			"a line of %d bytes is longer than the %d that the terminal takes",
			long,
			maxLineLen,
		),
		Hint: "write it to a file and let the program read that",
	}
}

// staysCanonical reports whether the terminal is in canonical mode, and stays so for lineEditor
// while a program runs.
func (f *call) staysCanonical(ctx context.Context) bool {
	s := f.s
	for range lineEditor / lookAgain {
		s.mu.Lock()
		c, works := s.console, s.track.Phase() == wire.PhaseRunning
		s.mu.Unlock()
		switch {
		case c == nil || c.local == nil || !canonical(c.local.TTY().Master):
			return false
		case !works:
			return true
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return true
		}
	}
	return true
}

// baseline returns the state of the program before the input, so that its current waiting does not
// count as the effect.
func (f *call) baseline() track.Reader {
	s := f.s
	s.mu.Lock()
	c := s.console
	s.mu.Unlock()
	facts, err := s.probe(s.ctx, c)
	if err != nil {
		return track.Reader{}
	}
	return facts.Reader()
}

// raw writes raw input of p, and returns how many bytes the terminal accepted.
func (s *session) raw(ctx context.Context, p *party, data []byte) (int, error) {
	s.mu.Lock()
	refused := s.keyboard.typesLocked(p)
	s.mu.Unlock()
	if refused != nil {
		return 0, refused
	}
	if err := s.writer.lock(ctx); err != nil {
		return 0, err
	}
	defer s.writer.unlock()
	n, err := s.writer.put(ctx, p, nil, data, nil)
	if errors.Is(err, &wire.Error{Code: wire.CodeKeyboardHeld}) {
		s.mu.Lock()
		p.Refused(time.Now())
		s.mu.Unlock()
	}
	return n, err
}
