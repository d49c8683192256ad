package session

import (
	"context"
	"errors"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// idleHold is how long a prompt must have been idle before a keyboard that was taken by typing is free again.
	idleHold = 5 * time.Second
	// typingPause is how long a person of whose typing something was refused has to type nothing before it takes a free keyboard
	// again.
	typingPause = time.Second
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
// person takes it from an agent at any time, and the sandbox's owner from a person who is not. Everybody else asks the person
// who holds it, and is next when that one gives it back. An agent is all parties of one principal together; each person is
// apart.
type keyboard struct {
	hold  hold
	who   wire.Party
	key   string // of who
	typed time.Time
	asked *party      // wants it next; nil when nobody does
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
	e.Hint = "wait until it is given back, or ask for it"
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
	case k.hold != holdFree && !(why == holdTaken && k.yields(p)):
		return k.refusal()
	}
	former, had, asked := k.key, k.hold != holdFree, k.asked
	s.endPrivateLocked()
	k.stop()
	*k = keyboard{hold: why, who: p.Party, key: p.key, typed: time.Now()}
	if asked != p && p.Kind == wire.Person {
		k.asked = asked
	}
	s.handedLocked(p)
	s.emitLocked(wire.Event{Kind: wire.EventKeyboard, Keyboard: k.String(), By: p.String(), ID: p.ID})
	if k.asked != nil {
		s.emitLocked(wire.Event{Kind: wire.EventAsk, By: k.asked.String(), Keyboard: k.String(), ID: k.asked.ID})
	}
	if had {
		for f := range s.follows {
			if f.key == former {
				f.taken, f.handover = k.String(), s.handover.copy(false)
			}
		}
		if w := s.writer; w != nil && w.key == former {
			w.endLocked(errTaken)
		}
	}
	s.sizeForLocked(p)
	return nil
}

// acquireTypingLocked gives p the keyboard for what it types. Of a line whose beginning was refused the rest is, too: the
// keyboard may come free in the middle of it, and the tail of a command is another command.
func (s *session) acquireTypingLocked(p *party) *wire.Error {
	var refused *wire.Error
	if k := &s.keyboard; k.hold == holdFree && p.Kind == wire.Person && p.Rights != wire.RightWatch && time.Since(p.refused) < typingPause {
		refused = &wire.Error{Code: wire.CodeKeyboardHeld, Message: "not typed: the keys before were refused; pause a second",
			Hint: "then type it again from its beginning, or take the keyboard"}
	} else {
		refused = s.acquireLocked(p, holdTyped)
	}
	if refused != nil {
		p.refused = time.Now()
	}
	return refused
}

// yields reports whether p may take the keyboard from its holder without asking.
func (k *keyboard) yields(p *party) bool {
	return p.Kind == wire.Person && (k.who.Kind == wire.Agent || p.Owner && !k.who.Owner)
}

// freeLocked takes the keyboard from its holder. Whoever has asked for it has it next.
func (s *session) freeLocked() {
	k := &s.keyboard
	if k.hold == holdFree {
		return
	}
	s.endPrivateLocked()
	by, next := k.String(), k.asked
	k.stop()
	*k = keyboard{}
	s.handedBackLocked()
	if next != nil && s.parties[next] && next.stream != nil {
		_ = s.acquireLocked(next, holdTaken) // it is free, and watchers cannot ask
		return
	}
	s.emitLocked(wire.Event{Kind: wire.EventKeyboard, By: by})
}

// askLocked asks the holder for the keyboard on behalf of p. One party asks at a time.
func (s *session) askLocked(p *party) *wire.Error {
	k := &s.keyboard
	if k.asked == p {
		return nil
	}
	if k.asked != nil {
		e := wire.Errorf(wire.CodeKeyboardHeld, "%s holds the keyboard, and %s has asked for it", k, k.asked)
		e.Hint = "ask again later"
		return e
	}
	k.asked = p
	s.emitLocked(wire.Event{Kind: wire.EventAsk, By: p.String(), Keyboard: k.String(), ID: p.ID})
	return nil
}

// unaskLocked says that nobody asks any longer.
func (s *session) unaskLocked() {
	if s.keyboard.asked != nil {
		s.keyboard.asked = nil
		s.emitLocked(wire.Event{Kind: wire.EventAsk, Keyboard: s.keyboard.String()})
	}
}

// keep says for p, who holds the keyboard, that it is not given to the party that asks. It returns who holds it.
func (s *session) keep(p *party) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keyboard.holds(p) {
		s.unaskLocked()
	}
	return s.keyboard.String()
}

// keyboardAtPromptLocked applies what a prompt, or the end of the shell, means for the keyboard.
func (s *session) keyboardAtPromptLocked() {
	if s.state.Phase == wire.PhaseDead {
		s.endPrivateLocked()
	}
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
// any more. With ask, a holder from whom p cannot take it is asked instead; then it returns that holder.
func (s *session) take(ctx context.Context, p *party, ask bool) (now string, asked bool, err error) {
	s.mu.Lock()
	if refused := s.acquireLocked(p, holdTaken); refused != nil {
		if ask && refused.Code == wire.CodeKeyboardHeld {
			refused = s.askLocked(p)
		}
		now = s.keyboard.String()
		s.mu.Unlock()
		if refused != nil {
			return "", false, refused
		}
		return now, true, nil
	}
	w := s.writer
	now = s.keyboard.String()
	s.mu.Unlock()
	if w != nil && w.key != p.key {
		select {
		case <-w.done:
		case <-ctx.Done():
			return "", false, context.Cause(ctx)
		}
	}
	return now, false, nil
}

// give frees the keyboard if p holds it, and returns who holds it then.
func (s *session) give(p *party) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch k := &s.keyboard; {
	case k.holds(p):
		s.freeLocked()
		s.restoreSizeLocked()
	case k.asked == p:
		s.unaskLocked() // what it asked for it no longer wants
	}
	return s.keyboard.String()
}

// await acquires the keyboard for the call that f follows. With wait it waits while another holds it, and notes what people did
// with it. The call that comes to nothing
// afterwards calls undo: a keyboard that it took for that is free again.
func (s *session) await(ctx context.Context, p *party, f *follow, wait bool) (undo func(), err error) {
	waited := false
	for {
		s.mu.Lock()
		had := s.keyboard.holds(p)
		err := s.acquireLocked(p, holdCall)
		if err == nil && waited {
			f.handover = s.handover.copy(true)
		}
		waited = true
		changed := s.changedLocked()
		s.mu.Unlock()
		if err == nil {
			undo = func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				if !had && s.keyboard.hold == holdCall && s.keyboard.holds(p) {
					s.freeLocked()
				}
			}
			// What is typed before a private stretch is over would be a part of it, with all that comes of it.
			if err := s.until(ctx, func() bool { return !s.private.ending }); err != nil {
				undo()
				if errors.Is(err, errClosed) {
					return nil, err
				}
				return nil, errPrivate
			}
			return undo, nil
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
	switch {
	case p.Kind == wire.Person && s.oldCols == 0:
		s.oldCols, s.oldRows = s.cols, s.rows
	case p.Kind == wire.Agent && cols == 0 && s.oldCols > 0:
		cols, rows = s.oldCols, s.oldRows
	case p.Kind == wire.Agent && cols == 0:
		cols, rows = s.start.Cols, s.start.Rows
	}
	if p.Kind == wire.Agent {
		s.oldCols, s.oldRows = 0, 0
	}
	if cols > 0 {
		s.resizeLocked(cols, rows, p.String())
	}
}

// restoreSizeLocked undoes a person's size when the keyboard has been given back.
func (s *session) restoreSizeLocked() {
	if s.keyboard.hold == holdFree && s.oldCols > 0 {
		s.resizeLocked(s.oldCols, s.oldRows, "")
		s.oldCols, s.oldRows = 0, 0
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
	s.private.before = nil // what a screen cuts off comes back when it grows
	if s.aliveLocked() {
		if err := s.console.term.Resize(cols, rows); err != nil {
			s.set.log.Warn("resize terminal", "session", s.name, "error", err)
		}
	}
	s.display.resize(cols, rows)
	s.emitLocked(wire.Event{Kind: wire.EventResize, Cols: cols, Rows: rows, By: by})
}
