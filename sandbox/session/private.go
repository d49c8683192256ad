package session

import (
	"context"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// private is private mode as far as the log and the screen are concerned; who has it, the keyboard
// knows. When it ends, what it left on the screen is erased.
type private struct {
	s      *session
	before *picture // the screen when it began; nil when that is not known, or its size has changed
}

// picture is what a screen showed.
type picture struct {
	lines []string
	alt   bool
}

// settles is how often the screen may fall behind the log before private mode begins or ends
// without knowing it.
const settles = 50

var errPrivate = &wire.Error{Code: wire.CodeDenied, Message: "the screen is private at the moment", Hint: "wait until the person who drives gives the keyboard back"}

// set begins or ends private mode for p, a person who holds the keyboard or takes a free one for
// that. The log from where it began is p's alone: nobody else reads it then or later.
func (v *private) set(ctx context.Context, p *party, on bool) error {
	s := v.s
	if !on {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keyboard.applyLocked(s.keyboard.EndPrivate(&p.Party))
		return nil
	}
	if refused := keyboard.NoPrivacy(&p.Party); refused != nil {
		return refused
	}
	if err := s.until(ctx, func() bool { return !s.keyboard.PrivateEnding() }); err != nil {
		return err
	}
	s.mu.Lock()
	refused := deadError(s.name)
	if s.aliveLocked() {
		var c keyboard.Change
		c, refused = s.keyboard.TakePrivate(&p.Party, time.Now())
		s.keyboard.applyLocked(c)
	}
	s.mu.Unlock()
	if refused != nil {
		return refused
	}
	return v.settled(ctx, func(current bool) error { return v.hideLocked(p, current) })
}

// hideLocked begins private mode for p. current says that the screen shows all of the log;
// display.mu is held.
func (v *private) hideLocked(p *party, current bool) error {
	s := v.s
	if !s.aliveLocked() && s.keyboard.Private() != &p.Party {
		return s.keyboard.Refusal()
	}
	began, refused := s.keyboard.MakePrivate(&p.Party)
	if refused != nil {
		return refused
	}
	if !began {
		return nil
	}
	s.events.tellInputLocked()
	if v.before = nil; current {
		v.before = s.display.pictureLocked()
	}
	s.log.hide()
	s.events.emitLocked(wire.Event{Kind: wire.EventPrivate, By: p.String(), ID: p.ID})
	told := s.stateLocked()
	s.events.emitLocked(wire.Event{Kind: wire.EventState, State: &told})
	return nil
}

// settled calls f with mu and display.mu held when the screen shows all of the log, or, in a flood
// of output, at some time: then current is false.
func (v *private) settled(ctx context.Context, f func(current bool) error) error {
	s := v.s
	for try := 0; ; try++ {
		_, end := s.log.bounds()
		if err := s.display.sync(ctx, end); err != nil {
			return err
		}
		s.mu.Lock()
		s.display.mu.Lock()
		_, end = s.log.bounds()
		current := s.display.fed == end
		if current || try == settles {
			err := f(current)
			s.display.mu.Unlock()
			s.mu.Unlock()
			return err
		}
		s.display.mu.Unlock()
		s.mu.Unlock()
	}
}

// coverLocked erases what private mode has left on the screen, and ends it then.
func (v *private) coverLocked() {
	s := v.s
	if s.closed {
		v.unveilLocked(nil)
		return
	}
	s.spawn(func() {
		err := v.settled(s.ctx, func(current bool) error {
			before := v.before
			if !current {
				before = nil
			}
			v.unveilLocked(s.display.coverLocked(before))
			return nil
		})
		if err != nil { // the session is being closed
			s.mu.Lock()
			defer s.mu.Unlock()
			v.unveilLocked(nil)
		}
	})
}

// unveilLocked makes what comes from here on everybody's again, first of all cover, which erases
// what private mode has left on every screen that follows the log. With a cover, display.mu is held.
func (v *private) unveilLocked(cover []byte) {
	s := v.s
	if !s.keyboard.Reveal() {
		return
	}
	v.before = nil
	missed := s.log.reveal()
	s.events.emitLocked(wire.Event{Kind: wire.EventPrivate, Missed: missed})
	end := s.log.append(cover)
	if len(cover) > 0 {
		s.display.veil = end
	}
	s.track.Erased() // whoever has looked at the screen looks again
	told := s.stateLocked()
	s.events.emitLocked(wire.Event{Kind: wire.EventState, State: &told})
}

// veilLocked takes what tells of the terminal's contents out of a state.
func (v *private) veilLocked(st *wire.State) {
	s := v.s
	if s.keyboard.Private() != nil {
		st.Prompt, st.LastLine, st.Foreground, st.Cwd, st.Reason = "", "", nil, "", ""
		st.Offset = min(st.Offset, s.log.shown())
	}
}

// untoldLocked reports whether an event is one that nobody is told of: it is about what was typed
// in private mode.
func (v *private) untoldLocked(ev wire.Event) bool {
	s := v.s
	switch ev.Kind {
	case wire.EventBegun, wire.EventOver:
		return s.keyboard.Private() != nil && ev.Op == ""
	case wire.EventInput:
		return s.keyboard.Private() != nil
	}
	return false
}

// byLocked is who keeps the session private, or nothing.
func (v *private) byLocked() string {
	s := v.s
	if p := s.keyboard.Private(); p != nil {
		return p.String()
	}
	return ""
}

// sees reports whether p may see what the terminal shows.
func (v *private) sees(p *party) bool {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keyboard.Sees(&p.Party)
}

// pictureLocked is what the screen shows; d.mu is held.
func (d *display) pictureLocked() *picture {
	b := &picture{alt: d.screen.Modes().AltScreen}
	_, rows := d.screen.Size()
	for y := range rows {
		b.lines = append(b.lines, d.screen.LineText(y))
	}
	return b
}

// coverLocked returns output that erases the lines which are not as they were before, or everything
// when that is not known, and leaves cursor and modes of a screen that has not seen the program's
// output since as ours are. d.mu is held.
func (d *display) coverLocked(before *picture) []byte {
	d.hushed = d.screen.Notice().Count
	m, cur := d.screen.Modes(), d.screen.Cursor()
	b := []byte("\x1b[m\x1b[?6l\x1b]2;\a")
	if before == nil || before.alt || m.AltScreen {
		b = append(b, "\x1b[?1049l\x1b[2J"...)
		if m.AltScreen {
			b = append(b, "\x1b[?1049h\x1b[2J"...)
		}
	} else {
		for y, line := range before.lines {
			if d.screen.LineText(y) != line {
				b = append(strconv.AppendInt(append(b, "\x1b["...), int64(y+1), 10), ";1H\x1b[2K"...)
			}
		}
	}
	mode := func(n int, on bool) {
		b = strconv.AppendInt(append(b, "\x1b[?"...), int64(n), 10)
		if on {
			b = append(b, 'h')
		} else {
			b = append(b, 'l')
		}
	}
	mode(1, m.AppCursor)
	mode(7, m.AutoWrap)
	mode(25, m.CursorVisible)
	mode(1004, m.FocusEvents)
	mode(2004, m.BracketedPaste)
	mode(1000, false)
	if m.Mouse != screen.MouseOff {
		mode(int(m.Mouse), true)
	}
	mode(1006, false)
	if m.MouseEncoding != 0 {
		mode(int(m.MouseEncoding), true)
	}
	if m.AppKeypad {
		b = append(b, "\x1b="...)
	} else {
		b = append(b, "\x1b>"...)
	}
	b = strconv.AppendInt(append(b, "\x1b["...), int64(cur.Y+1), 10)
	b = strconv.AppendInt(append(b, ';'), int64(cur.X+1), 10)
	return append(b, 'H')
}

// veiledLocked reports whether the screen shows what is not for everybody; d.mu is held.
func (d *display) veiledLocked() bool {
	return d.fed < d.veil || d.fed > d.s.log.shown()
}
