package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// askTime is how long a program may take to be seen asking, once an answer to it is there: one that listens counts as asking
// when it has come to rest.
const askTime = restTime + 300*time.Millisecond

// awaitQuestion returns nil if a program is found to ask for input within askTime, else an error that names what runs instead.
// What was found before the call counts for nothing: nobody may have looked since.
func (s *session) awaitQuestion(ctx context.Context) error {
	s.mu.Lock()
	c := s.console
	found := s.verdicts
	release := s.waitLocked()
	s.mu.Unlock()
	defer release()
	soon, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := s.until(soon, func() bool {
		return s.asksLocked() && s.verdicts > found || s.state.Phase == wire.PhasePrompt || s.state.Phase == wire.PhaseDead || s.console != c
	})
	if err != nil && soon.Err() == nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	facts, _ := s.probe(s.ctx, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.asksLocked() && s.verdicts > found:
		return nil
	case s.state.Phase == wire.PhaseDead || s.console != c:
		return deadError(s.name)
	case s.state.Phase == wire.PhasePrompt:
		return &wire.Error{Code: wire.CodeNotWaiting, Message: "nobody asks: the shell is at its prompt", Hint: "give it a command with run"}
	}
	e := wire.Errorf(wire.CodeNotWaiting, "%s runs in session %s and does not ask", s.occupantLocked(facts), s.name)
	e.Hint = "wait until it does, or type to it all the same"
	return e
}

// stillAsks looks whether who asks does so at this moment, and returns what he does: an answer that comes later is read by
// somebody else, and may be a secret. Who listens may stir for stirTime. The caller holds writing, so that nobody answers meanwhile.
func (s *session) stillAsks(ctx context.Context) (look, bool) {
	for until := time.Now().Add(stirTime); ; {
		s.mu.Lock()
		c, asker := s.console, s.state.Foreground
		asks := s.asksLocked()
		s.mu.Unlock()
		if !asks {
			return look{}, false
		}
		f, err := s.probe(s.ctx, c)
		same := asker == nil || asker.Pid == f.Pid
		if err != nil || same && !f.Pending && (f.Blocked || f.Listens || f.Opaque) {
			return look{pid: f.Pid, runs: f.Runs, blocked: f.Blocked}, s.asks() // without process facts the state is all there is
		}
		if time.Now().After(until) {
			return look{}, false
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return look{}, false
		}
	}
}

// asks reports whether a program wants an answer, by the state as it is.
func (s *session) asks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asksLocked()
}

func (s *session) asksLocked() bool {
	switch s.state.Phase {
	case wire.PhaseWaiting, wire.PhaseContinuation:
		return true
	case wire.PhaseRunning, wire.PhaseOpaque:
		return s.state.Attention == "likely"
	}
	return false
}
