package session

import (
	"context"
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// private is a stretch of a session that is for the person who drives alone: the log from where it began is theirs, nobody
// else reads it then or later. When it ends, what it left on the screen is erased.
type private struct {
	on     bool
	by     *party
	ending bool     // it is nobody's any more, and about to be over
	before *picture // the screen when it began; nil when that is not known, or its size has changed since
}

// picture is what a screen showed.
type picture struct {
	lines []string
	alt   bool
}

// settles is how often the screen may fall behind the log before a private stretch begins or ends without knowing it.
const settles = 50

var errPrivate = &wire.Error{Code: wire.CodeDenied, Message: "the screen is private at the moment", Hint: "wait until the person who drives gives the keyboard back"}

// setPrivate begins or ends a private stretch for p, a person who has the keyboard or takes a free one for that.
func (s *session) setPrivate(ctx context.Context, p *party, on bool) error {
	if !on {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.private.on && s.private.by == p {
			s.endPrivateLocked()
		}
		return nil
	}
	if p.Kind != wire.Person {
		return &wire.Error{Code: wire.CodeDenied, Message: "only a person makes a session private"}
	}
	if err := s.until(ctx, func() bool { return !s.private.ending }); err != nil {
		return err
	}
	s.mu.Lock()
	var refused *wire.Error
	if k := &s.keyboard; !s.aliveLocked() {
		refused = deadError(s.name)
	} else if k.hold != holdFree && !k.holds(p) {
		refused = k.refusal()
	} else {
		refused = s.acquireLocked(p, holdTaken)
	}
	s.mu.Unlock()
	if refused != nil {
		return refused
	}
	return s.settled(ctx, func(current bool) error {
		switch k := &s.keyboard; {
		case s.private.on && s.private.by == p:
			return nil
		case s.private.on || !k.holds(p) || !s.aliveLocked():
			return k.refusal()
		}
		s.tellInputLocked()
		s.private = private{on: true, by: p}
		if current {
			s.private.before = s.display.pictureLocked()
		}
		s.log.hide()
		s.emitLocked(wire.Event{Kind: wire.EventPrivate, By: p.String(), ID: p.ID})
		told := s.stateLocked()
		s.emitLocked(wire.Event{Kind: wire.EventState, State: &told})
		return nil
	})
}

// settled calls f with mu and display.mu held when the screen shows all of the log, or, in a flood of output, at some time:
// then current is false.
func (s *session) settled(ctx context.Context, f func(current bool) error) error {
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

// endPrivateLocked ends a private stretch. Until its traces are gone it goes on, for nobody.
func (s *session) endPrivateLocked() {
	if !s.private.on || s.private.ending {
		return
	}
	s.private.ending = true
	if s.closed {
		s.unveilLocked(nil)
		return
	}
	s.spawn(func() {
		err := s.settled(s.ctx, func(current bool) error {
			before := s.private.before
			if !current {
				before = nil
			}
			s.unveilLocked(s.display.coverLocked(before))
			return nil
		})
		if err != nil { // the session is being closed
			s.mu.Lock()
			defer s.mu.Unlock()
			s.unveilLocked(nil)
		}
	})
}

// unveilLocked makes what comes from here on everybody's again, first of all cover, which erases what the stretch has left on
// every screen that follows the log. With a cover, display.mu is held.
func (s *session) unveilLocked(cover []byte) {
	if !s.private.on {
		return
	}
	s.private = private{}
	missed := s.log.reveal()
	s.emitLocked(wire.Event{Kind: wire.EventPrivate, Missed: missed})
	end := s.log.append(cover)
	if len(cover) > 0 {
		s.display.veil = end
	}
	s.reads++ // whoever has looked at the screen looks again
	s.state.Prompt = ""
	told := s.stateLocked()
	s.emitLocked(wire.Event{Kind: wire.EventState, State: &told})
}

// veilLocked takes what tells of the terminal's contents out of a state.
func (s *session) veilLocked(st *wire.State) {
	if s.private.on {
		st.Prompt, st.LastLine, st.Foreground, st.Cwd, st.Reason = "", "", nil, "", ""
		st.Offset = min(st.Offset, s.log.shown())
	}
}

// untoldLocked reports whether an event is one that nobody is told of: it is about what was typed in a private stretch.
func (s *session) untoldLocked(ev wire.Event) bool {
	switch ev.Kind {
	case wire.EventBegun, wire.EventOver:
		return s.private.on && ev.Op == ""
	case wire.EventInput:
		return s.private.on
	}
	return false
}

// privateLocked is whose private stretch there is, or nothing.
func (s *session) privateLocked() string {
	if !s.private.on {
		return ""
	}
	return s.private.by.String()
}

// seesPrivate reports whether p is who may see what the terminal shows.
func (s *session) seesPrivate(p *party) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seesPrivateLocked(p)
}

func (s *session) seesPrivateLocked(p *party) bool {
	return !s.private.on || !s.private.ending && s.private.by == p
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

// coverLocked returns output that erases the lines which are not as they were before, or everything when that is not known,
// and leaves cursor and modes of a screen that has not seen the program's output since as ours are. d.mu is held.
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
