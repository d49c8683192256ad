package session

import (
	"context"
	"errors"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// keyboardLocked carries out and reports what an operation of the keyboard did.
func (s *session) keyboardLocked(c keyboard.Change) {
	if c.PrivateOver {
		s.private.coverLocked()
	}
	if c.Freed || c.To != nil {
		s.handOnLocked(c)
	}
	if c.Asked {
		ev := wire.Event{Kind: wire.EventAsk, Keyboard: s.keyboard.String()}
		if p := s.keyboard.Asker(); p != nil {
			ev.By, ev.ID = p.String(), p.ID
		}
		s.events.emitLocked(ev)
	}
	if c.TakenFrom != "" {
		s.takenFromLocked(c.TakenFrom)
	}
	if p := c.To; p != nil {
		start := keyboard.Size{Cols: s.start.Cols, Rows: s.start.Rows}
		s.resizeLocked(s.keyboard.SizeFor(p, s.size, start), p.String())
	}
}

// handOnLocked notes and reports that the keyboard has another holder, or none.
func (s *session) handOnLocked(c keyboard.Change) {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	if c.Freed {
		s.handedBackLocked()
	}
	ev := wire.Event{Kind: wire.EventKeyboard, By: c.By}
	if p := c.To; p != nil {
		s.handedLocked(p)
		ev.Keyboard, ev.By, ev.ID = p.String(), p.String(), p.ID
	}
	s.events.emitLocked(ev)
}

// takenFromLocked ends the calls and the write of the holder with that key, who has lost the
// keyboard.
func (s *session) takenFromLocked(key string) {
	for f := range s.calls {
		if f.key == key {
			f.taken, f.handover = s.keyboard.String(), s.handover.copy(false)
		}
	}
	if w := s.writer.present; w != nil && w.key == key {
		w.endLocked(errTaken)
	}
}

// typesLocked takes the keyboard for input of p.
func (s *session) typesLocked(p *party) *wire.Error {
	c, refused := s.keyboard.Type(&p.Party, time.Now())
	s.keyboardLocked(c)
	return refused
}

// callsLocked takes the keyboard for a call of p.
func (s *session) callsLocked(p *party) *wire.Error {
	c, refused := s.keyboard.Call(&p.Party, time.Now())
	s.keyboardLocked(c)
	return refused
}

// keep refuses for p, who holds the keyboard, the party that asks for it. It returns who holds it.
func (s *session) keep(p *party) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keyboardLocked(s.keyboard.Keep(&p.Party))
	return s.keyboard.String()
}

// keyboardAtPromptLocked applies what a prompt, or the end of the shell, means for the keyboard.
func (s *session) keyboardAtPromptLocked() {
	if s.track.Phase() == wire.PhaseDead {
		s.keyboardLocked(s.keyboard.EndPrivate(nil))
	}
	s.keyboardLocked(s.keyboard.Rest())
	s.freeLaterLocked()
}

// freeLaterLocked frees a keyboard that was taken by typing once the prompt has been idle long
// enough. A timer runs only while such a hold is at a prompt.
func (s *session) freeLaterLocked() {
	if s.idle != nil || !s.track.Rests() {
		return
	}
	left, ok := s.keyboard.Idle(time.UnixMilli(s.track.Last().SinceUnix), time.Now())
	if !ok {
		return
	}
	s.idle = time.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed || s.idle == nil {
			return
		}
		s.idle = nil
		if s.track.Rests() {
			s.keyboardLocked(s.keyboard.FreeIdle(time.UnixMilli(s.track.Last().SinceUnix), time.Now()))
			s.freeLaterLocked()
		}
	})
}

// take gives p the keyboard until p gives it back or leaves. It returns when no write of the former
// holder is under way any more. With ask, a holder from whom p cannot take it is asked instead, and
// returned.
func (s *session) take(ctx context.Context, p *party, ask bool) (now string, asked bool, err error) {
	s.mu.Lock()
	c, refused := s.keyboard.Take(&p.Party, time.Now())
	if asked = ask && refused != nil && refused.Code == wire.CodeKeyboardHeld; asked {
		c, refused = s.keyboard.Ask(&p.Party)
	}
	s.keyboardLocked(c)
	w := s.writer.present
	now = s.keyboard.String()
	s.mu.Unlock()
	switch {
	case refused != nil:
		return "", false, refused
	case asked || w == nil || w.key == p.Key:
		return now, asked, nil
	}
	select {
	case <-w.done:
		return now, false, nil
	case <-ctx.Done():
		return "", false, context.Cause(ctx)
	}
}

// give frees the keyboard if p holds it, and returns who holds it then.
func (s *session) give(p *party) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.keyboard.Holds(&p.Party)
	s.keyboardLocked(s.keyboard.Give(&p.Party))
	if held {
		s.resizeLocked(s.keyboard.RestoreSize(), "")
	}
	return s.keyboard.String()
}

// await acquires the keyboard for the call that f follows. With wait it waits while another holds
// it, and notes what people did with it. A call that comes to nothing afterwards calls undo, which
// frees a keyboard that was taken for it.
func (f *call) await(ctx context.Context, p *party, wait bool) (undo func(), err error) {
	s := f.s
	waited := false
	for {
		s.mu.Lock()
		had := s.keyboard.Holds(&p.Party)
		refused := s.callsLocked(p)
		if refused == nil && waited {
			f.handover = s.handover.copy(true)
		}
		waited = true
		changed := s.changedLocked()
		s.mu.Unlock()
		if refused == nil {
			return s.awaitPublic(ctx, p, had)
		}
		if !wait || refused.Code != wire.CodeKeyboardHeld {
			return nil, refused
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, refused
		case <-s.ctx.Done():
			return nil, errClosed
		}
	}
}

// awaitPublic waits until private mode that is ending has ended: what is typed before would be a
// part of it. It returns what undoes the taking of the keyboard, unless p had it before.
func (s *session) awaitPublic(ctx context.Context, p *party, had bool) (undo func(), err error) {
	undo = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !had {
			s.keyboardLocked(s.keyboard.EndCall(&p.Party))
		}
	}
	err = s.until(ctx, func() bool { return !s.keyboard.PrivateEnding() })
	if err == nil {
		return undo, nil
	}
	undo()
	if errors.Is(err, errClosed) {
		return nil, err
	}
	return nil, errPrivate
}
