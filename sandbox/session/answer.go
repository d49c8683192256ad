package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// awaitQuestion returns nil if a program asks for input within [track.AskTime], else an error that
// names the running program. Earlier evidence does not count, because it may be outdated. On a busy
// machine that time may be too short for a verdict: then what the processes do now counts.
func (f *call) awaitQuestion(ctx context.Context) error {
	s := f.s
	s.mu.Lock()
	c := s.console
	found := s.track.Counts().Verdicts
	release := s.waiters.addLocked()
	s.mu.Unlock()
	defer release()
	soon, cancel := context.WithTimeout(ctx, track.AskTime)
	defer cancel()
	asks := func() bool { return track.Asks(s.track.Last()) && s.track.Counts().Verdicts > found }
	err := s.until(soon, func() bool { return asks() || s.track.Rests() || s.console != c })
	if err != nil && soon.Err() == nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	facts, unknown := s.probe(s.ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case asks():
		return nil
	case s.console == c && track.Asks(s.track.Last()) && unknown == nil && facts.Blocked &&
		!facts.Pending:
		return nil
	case s.track.Phase() == wire.PhaseDead || s.console != c:
		return deadError(s.name)
	case s.track.Phase() == wire.PhasePrompt:
		return &wire.Error{
			Code:    wire.CodeNotWaiting,
			Message: "no program asks: the shell is at its prompt",
			Hint:    "use run for a command",
		}
	}
	e := wire.Errorf(
		wire.CodeNotWaiting,
		"%s runs in session %s and does not ask",
		f.occupantLocked(facts),
		s.name,
	)
	e.Hint = "wait until it does, or type to it all the same"
	return e
}

// stillAsks reports whether the program that asked still asks, and returns its reader. Otherwise
// another program could read the answer, which may be a secret. A listening program may be active
// for StirTime. The caller holds the writer's semaphore, so that no other answer is written
// meanwhile.
func (f *call) stillAsks(ctx context.Context) (track.Reader, bool) {
	s := f.s
	for until := time.Now().Add(track.StirTime); ; {
		s.mu.Lock()
		c, asker := s.console, s.track.Last().Foreground
		asks := track.Asks(s.track.Last())
		s.mu.Unlock()
		if !asks {
			return track.Reader{}, false
		}
		f, err := s.probe(s.ctx, c)
		same := asker == nil || asker.Pid == f.Pid
		if err != nil || same && !f.Pending && (f.Blocked || f.Listens || f.Opaque) {
			return f.Reader(), s.asks() // without process evidence, only the state is known
		}
		if time.Now().After(until) {
			return track.Reader{}, false
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return track.Reader{}, false
		}
	}
}

// asks reports whether a program asks for input, by the current state.
func (s *session) asks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return track.Asks(s.track.Last())
}
