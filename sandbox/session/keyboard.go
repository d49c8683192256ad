package session

import (
	"context"
	"errors"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// driver applies the keyboard rules to the session. Its fields are guarded by session.mu.
type driver struct {
	keyboard.Keyboard
	s        *session
	handover handover
	idle     *time.Timer // frees the keyboard at an idle prompt; nil unless it runs
}

// applyLocked applies and reports the changes of a keyboard operation.
func (d *driver) applyLocked(c keyboard.Change) {
	s := d.s
	if c.PrivateOver {
		s.private.coverLocked()
	}
	if c.Freed || c.To != nil {
		d.handOnLocked(c)
	}
	if c.Asked {
		ev := wire.Event{Kind: wire.EventAsk, Keyboard: d.String()}
		if p := d.Asker(); p != nil {
			ev.By, ev.ID = p.String(), p.ID
		}
		s.events.emitLocked(ev)
	}
	if c.TakenFrom != "" {
		d.takenFromLocked(c.TakenFrom)
	}
	if p := c.To; p != nil {
		start := keyboard.Size{Cols: s.start.Cols, Rows: s.start.Rows}
		s.resizeLocked(d.SizeFor(p, s.size, start), p.String())
	}
}

// handOnLocked records and reports a new holder of the keyboard, or none.
func (d *driver) handOnLocked(c keyboard.Change) {
	s := d.s
	if d.idle != nil {
		d.idle.Stop()
		d.idle = nil
	}
	if c.Freed {
		d.handedBackLocked()
	}
	ev := wire.Event{Kind: wire.EventKeyboard, By: c.By}
	if p := c.To; p != nil {
		d.handedLocked(p)
		ev.Keyboard, ev.By, ev.ID = p.String(), p.String(), p.ID
	}
	s.events.emitLocked(ev)
}

// takenFromLocked ends the calls and the write of a holder, by key, that has lost the keyboard.
func (d *driver) takenFromLocked(key string) {
	s := d.s
	for f := range s.calls {
		if f.key == key {
			f.taken, f.handover = d.String(), d.handover.copy(false)
		}
	}
	if w := s.writer.present; w != nil && w.key == key {
		w.endLocked(errTaken)
	}
}

// typesLocked takes the keyboard for input of p.
func (d *driver) typesLocked(p *party) *wire.Error {
	c, refused := d.Type(&p.Party, time.Now())
	d.applyLocked(c)
	return refused
}

// callsLocked takes the keyboard for a call of p.
func (d *driver) callsLocked(p *party) *wire.Error {
	c, refused := d.Call(&p.Party, time.Now())
	d.applyLocked(c)
	return refused
}

// keep rejects the request of another party for the keyboard, which p holds. It returns the holder.
func (d *driver) keep(p *party) string {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	d.applyLocked(d.Keep(&p.Party))
	return d.String()
}

// atPromptLocked applies the keyboard rules for a prompt or the end of the shell.
func (d *driver) atPromptLocked() {
	s := d.s
	if s.track.Phase() == wire.PhaseDead {
		d.applyLocked(d.EndPrivate(nil))
	}
	d.applyLocked(d.Rest())
	d.freeLaterLocked()
}

// freeLaterLocked starts a timer that frees a keyboard that was taken by typing, after the prompt
// has been idle.
func (d *driver) freeLaterLocked() {
	s := d.s
	if d.idle != nil || !s.track.Rests() {
		return
	}
	left, ok := d.Idle(time.UnixMilli(s.track.Last().SinceUnix), time.Now())
	if !ok {
		return
	}
	d.idle = time.AfterFunc(left, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed || d.idle == nil {
			return
		}
		d.idle = nil
		if s.track.Rests() {
			d.applyLocked(d.FreeIdle(time.UnixMilli(s.track.Last().SinceUnix), time.Now()))
			d.freeLaterLocked()
		}
	})
}

// take gives p the keyboard until p gives it back or leaves. It returns when the former holder's
// write has ended. With ask, if p cannot take the keyboard, the holder is asked for it and
// returned.
func (d *driver) take(ctx context.Context, p *party, ask bool) (now string, asked bool, err error) {
	s := d.s
	s.mu.Lock()
	c, refused := d.Take(&p.Party, time.Now())
	if asked = ask && refused != nil && refused.Code == wire.CodeKeyboardHeld; asked {
		c, refused = d.Ask(&p.Party)
	}
	d.applyLocked(c)
	w := s.writer.present
	now = d.String()
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

// give frees the keyboard if p holds it, and returns the new holder.
func (d *driver) give(p *party) string {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	held := d.Holds(&p.Party)
	d.applyLocked(d.Give(&p.Party))
	if held {
		s.resizeLocked(d.RestoreSize(), "")
	}
	return d.String()
}

// await acquires the keyboard for the call of f. With wait, it waits while another party holds it,
// and records what people did meanwhile. A call that then fails must call undo, which frees the
// keyboard if it was taken for the call.
func (f *call) await(ctx context.Context, p *party, wait bool) (undo func(), err error) {
	s := f.s
	waited := false
	for {
		s.mu.Lock()
		had := s.keyboard.Holds(&p.Party)
		refused := s.keyboard.callsLocked(p)
		if refused == nil && waited {
			f.handover = s.keyboard.handover.copy(true)
		}
		waited = true
		changed := s.changedLocked()
		s.mu.Unlock()
		if refused == nil {
			return f.awaitPublic(ctx, p, had)
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

// awaitPublic waits until an ending private mode has ended, because earlier input would be a part
// of it. undo gives the keyboard back, unless p had it before.
func (f *call) awaitPublic(ctx context.Context, p *party, had bool) (undo func(), err error) {
	s := f.s
	undo = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !had {
			s.keyboard.applyLocked(s.keyboard.EndCall(&p.Party))
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
