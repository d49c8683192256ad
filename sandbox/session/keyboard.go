package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// idleHold is how long a prompt must have been idle before a keyboard that was taken by typing is free again.
	idleHold = 5 * time.Second
	// partyGrace is how long a party whose stream broke keeps its keyboard.
	partyGrace = 30 * time.Second
)

// hold is why somebody holds the keyboard, and so what frees it.
type hold int

const (
	holdFree  hold = iota
	holdCall       // a run, type or keys: until the next prompt
	holdTyped      // input: until the prompt has been idle for idleHold
	holdTaken      // asked for: until given
)

// keyboard is who may write to the terminal. Joining a session takes nothing; typing and calls take a free keyboard; a
// person takes it from an agent at any time, and nobody takes it from a person. An agent is all parties of one principal
// together; each person is apart.
type keyboard struct {
	hold  hold
	who   wire.Party
	key   string // of who
	typed time.Time
	timer *time.Timer // frees a holdTyped at the prompt; nil unless it runs
}

// String is the holder as people see it, or nothing.
func (k *keyboard) String() string {
	if k.hold == holdFree {
		return ""
	}
	return k.who.String()
}

func (k *keyboard) stop() {
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
}

// holds reports whether p has the keyboard.
func (k *keyboard) holds(p *party) bool { return k.hold != holdFree && k.key == p.key }

// refusal is the error for a party that does not have the keyboard.
func (k *keyboard) refusal() *wire.Error {
	e := wire.Errorf(wire.CodeKeyboardHeld, "%s holds the keyboard", k)
	e.Hint = "wait until it is given back"
	if k.who.Kind == wire.Agent {
		e.Hint = "a person can take it"
	}
	return e
}

// watchOnly is the error for a party that may not drive.
func watchOnly(p *party) *wire.Error {
	return &wire.Error{Code: wire.CodeDenied, Message: p.String() + " may only watch", Hint: "ask for the right to drive"}
}

// acquireLocked gives p the keyboard for a reason: if it is free or p's already, or if p is a person who takes it from an
// agent. A reason weaker than the one for which p holds it changes nothing.
func (s *session) acquireLocked(p *party, why hold) *wire.Error {
	k := &s.keyboard
	switch {
	case p.Rights == wire.RightWatch:
		return watchOnly(p)
	case k.holds(p):
		if why > k.hold {
			k.hold = why
		}
		if why == holdTyped {
			k.typed = time.Now()
		}
		if k.hold == holdTaken {
			k.stop()
		}
		return nil
	case k.hold != holdFree && !(why == holdTaken && p.Kind == wire.Person && k.who.Kind == wire.Agent):
		return k.refusal()
	}
	former, had := k.key, k.hold != holdFree
	k.stop()
	*k = keyboard{hold: why, who: p.Party, key: p.key, typed: time.Now()}
	s.emitLocked(wire.Event{Kind: wire.EventKeyboard, Keyboard: k.String(), By: p.String()})
	if had {
		for f := range s.follows {
			if f.key == former {
				f.taken = k.String()
			}
		}
		if w := s.writer; w != nil && w.key == former {
			w.endLocked(errTaken)
		}
	}
	s.sizeForLocked(p)
	return nil
}

// freeLocked takes the keyboard from its holder.
func (s *session) freeLocked() {
	if s.keyboard.hold == holdFree {
		return
	}
	by := s.keyboard.String()
	s.keyboard.stop()
	s.keyboard = keyboard{}
	s.emitLocked(wire.Event{Kind: wire.EventKeyboard, By: by})
}

// keyboardAtPromptLocked applies what a prompt, or the end of the shell, means for the keyboard.
func (s *session) keyboardAtPromptLocked() {
	switch s.keyboard.hold {
	case holdCall:
		s.freeLocked()
	case holdTyped:
		s.freeLaterLocked()
	}
}

// restingLocked reports whether nothing runs that a keyboard taken by typing could be needed for.
func (s *session) restingLocked() bool {
	return s.state.Phase == wire.PhasePrompt || s.state.Phase == wire.PhaseDead
}

// freeLaterLocked frees a keyboard that was taken by typing when the prompt has been idle long enough. There is a timer
// only while such a hold is at a prompt.
func (s *session) freeLaterLocked() {
	k := &s.keyboard
	if k.hold != holdTyped || k.timer != nil || !s.restingLocked() {
		return
	}
	since := k.typed
	if at := time.UnixMilli(s.state.SinceUnix); at.After(since) {
		since = at
	}
	k.timer = time.AfterFunc(time.Until(since.Add(idleHold)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed || s.keyboard.timer == nil {
			return
		}
		s.keyboard.timer = nil
		if s.keyboard.hold != holdTyped || !s.restingLocked() {
			return
		}
		idle := s.keyboard.typed
		if at := time.UnixMilli(s.state.SinceUnix); at.After(idle) {
			idle = at
		}
		if time.Since(idle) >= idleHold {
			s.freeLocked()
			return
		}
		s.freeLaterLocked()
	})
}

// take gives p the keyboard until it gives it back or leaves. It returns when no write of the former holder is under way
// any more.
func (s *session) take(ctx context.Context, p *party) (string, error) {
	s.mu.Lock()
	if err := s.acquireLocked(p, holdTaken); err != nil {
		s.mu.Unlock()
		return "", err
	}
	w, now := s.writer, s.keyboard.String()
	s.mu.Unlock()
	if w != nil && w.key != p.key {
		select {
		case <-w.done:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	return now, nil
}

// give frees the keyboard if p holds it, and returns who holds it then.
func (s *session) give(p *party) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keyboard.holds(p) {
		s.freeLocked()
		s.restoreSizeLocked(p)
	}
	return s.keyboard.String()
}

// await acquires the keyboard for a call. With wait it waits while another holds it. The call that comes to nothing
// afterwards calls undo: a keyboard that it took for that is free again.
func (s *session) await(ctx context.Context, p *party, wait bool) (undo func(), err error) {
	for {
		s.mu.Lock()
		had := s.keyboard.holds(p)
		err := s.acquireLocked(p, holdCall)
		changed := s.changedLocked()
		s.mu.Unlock()
		if err == nil {
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				if !had && s.keyboard.hold == holdCall && s.keyboard.holds(p) {
					s.freeLocked()
				}
			}, nil
		}
		if !wait || err.Code != wire.CodeKeyboardHeld {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, err
		case <-s.ctx.Done():
			return nil, errClosed
		}
	}
}

// sizeForLocked gives the terminal the size of its new driver: the one it asked for, an agent's being the session's own
// unless it did.
func (s *session) sizeForLocked(p *party) {
	cols, rows := p.cols, p.rows
	if cols == 0 && p.Kind == wire.Agent {
		cols, rows = s.start.Cols, s.start.Rows
	}
	if cols > 0 {
		s.resizeLocked(cols, rows, p.String())
	}
}

// restoreSizeLocked undoes a person's size when he gives the keyboard back.
func (s *session) restoreSizeLocked(p *party) {
	if p.Kind == wire.Person && p.cols > 0 {
		s.resizeLocked(s.start.Cols, s.start.Rows, p.String())
	}
}

// resize notes the size that p has, and applies it if p drives: it holds the keyboard, or nobody does and p is the only
// party that could.
func (s *session) resize(p *party, cols, rows int) error {
	if cols < 1 || rows < 1 {
		return wire.Errorf(wire.CodeUsage, "size %dx%d is not one of a terminal", cols, rows)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.cols, p.rows = wire.ClampSize(uint32(cols), uint32(rows))
	if p.Rights == wire.RightWatch || !s.keyboard.holds(p) && (s.keyboard.hold != holdFree || s.othersLocked(p)) {
		return nil
	}
	s.resizeLocked(p.cols, p.rows, p.String())
	return nil
}

// resizeDead gives a session whose shell has ended the size that a brings along: a starts it again, as it would a new one.
func (s *session) resizeDead(a wire.Attach) {
	if a.Start == nil || a.Start.Cols <= 0 || a.Start.Rows <= 0 {
		return
	}
	by := local
	if a.Party != nil {
		by = *a.Party
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.aliveLocked() {
		s.start.Cols, s.start.Rows = wire.ClampSize(uint32(a.Start.Cols), uint32(a.Start.Rows))
		s.resizeLocked(s.start.Cols, s.start.Rows, by.String())
	}
}

func (s *session) resizeLocked(cols, rows int, by string) {
	if cols == s.cols && rows == s.rows {
		return
	}
	s.cols, s.rows = cols, rows
	if s.aliveLocked() {
		if err := s.console.term.Resize(cols, rows); err != nil {
			s.set.log.Warn("resize terminal", "session", s.name, "error", err)
		}
	}
	s.display.resize(cols, rows)
	s.emitLocked(wire.Event{Kind: wire.EventResize, Cols: cols, Rows: rows, By: by})
}
