package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// typing sends text or keys to the program and waits for what comes of it.
func (s *session) typing(ctx context.Context, o *op, p *party, r wire.Request) *wire.Result {
	f := s.newCall(r)
	f.key, f.keys = p.Key, r.Verb == wire.VerbKeys
	ctx, cancel := bound(ctx, r.TimeoutMS)
	defer cancel()
	if !s.alive() { // a new shell would run what a program was to read
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
		return f.refused(&wire.Error{Code: wire.CodeNotWaiting, Message: "nobody asks any more: somebody else was faster, or the program did not wait",
			Hint: "look what it does now: wait"})
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

// partlyError is the loss of a call of whose input the terminal took n bytes of all, because of
// err.
func (f *call) partlyError(err error, n, all int) *wire.Error {
	s := f.s
	return wire.LostError(wire.LostPartly, fmt.Sprintf("%s (%d of %d bytes were taken)", s.public(err).Message, n, all))
}

// partly is the Result of f, which is lost for why.
func (f *call) partly(why *wire.Error) *wire.Result {
	res := f.result(wire.Lost)
	res.Error = why
	res.Notes = append(res.Notes, why.Reason)
	return res
}

// inputOf is the bytes that a type or keys sends.
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

// lineEditor is how long a program at work may take until it takes keys as they come, before a line
// is too long for it: a shell that starts, or comes back to its prompt, is about to.
const lineEditor = 3 * time.Second

// checkLines refuses a line that a terminal in canonical mode would cut off without a word.
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
	return &wire.Error{Code: wire.CodeLineTooLong, Message: fmt.Sprintf("a line of %d bytes is longer than the %d that the terminal takes", long, maxLineLen),
		Hint: "write it to a file and let the program read that"}
}

// staysCanonical reports whether the terminal gathers lines, and goes on doing so while a program
// that is at work may become one that reads.
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

// baseline is what the program does before it is typed to, so that its waiting now is not taken for
// its answer.
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

// raw takes input of p as it comes, and returns how much of it the terminal took.
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
