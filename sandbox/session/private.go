package session

import (
	"context"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// private is private mode for the log and the screen. The keyboard knows its party. At its end, its
// text on the screen is erased.
type private struct {
	s      *session
	before *picture // the screen at its start; nil if unknown or if the size has changed
}

// picture is a copy of a screen.
type picture struct {
	lines []string
	alt   bool
}

// settles limits the attempts to wait for the screen before private mode begins or ends without it,
// and settleOutput the bytes of output that come meanwhile.
const (
	settles      = 50
	settleOutput = 64 << 10
)

var errPrivate = &wire.Error{
	Code:    wire.CodeDenied,
	Message: "the screen is private",
	Hint:    "wait until the person who holds the keyboard gives it back",
}

// set begins or ends private mode for p, a person who holds the keyboard or takes a free one. The
// log of private mode is only for p: no other party reads it then or later.
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

// hideLocked begins private mode for p. current reports that the screen shows all of the log. mu
// and display.mu are held.
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
	s.track.Hide()
	s.events.emitLocked(wire.Event{Kind: wire.EventPrivate, By: p.String(), ID: p.ID})
	told := s.stateLocked()
	s.events.emitLocked(wire.Event{Kind: wire.EventState, State: &told})
	return nil
}

// settled calls f with mu and display.mu held, when the screen shows all of the log. In a flood of
// output, it gives up after some attempts or bytes, and calls f with current false.
func (v *private) settled(ctx context.Context, f func(current bool) error) error {
	s := v.s
	_, begun := s.log.bounds()
	for try := 0; ; try++ {
		_, end := s.log.bounds()
		if err := s.display.sync(ctx, end); err != nil {
			return err
		}
		s.mu.Lock()
		s.display.mu.Lock()
		_, end = s.log.bounds()
		current := s.display.fed == end
		if current || try == settles || end-begun > settleOutput {
			err := f(current)
			s.display.mu.Unlock()
			s.mu.Unlock()
			return err
		}
		s.display.mu.Unlock()
		s.mu.Unlock()
	}
}

// coverLocked starts to erase the text of private mode on the screen. Private mode ends after that.
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
		if err != nil { // the session is closing
			s.mu.Lock()
			defer s.mu.Unlock()
			v.unveilLocked(nil)
		}
	})
}

// unveilLocked makes further output public, beginning with cover, which erases the text of private
// mode on all screens. With a cover, display.mu is held.
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
	s.track.Erased() // checks of the screen are outdated
	s.track.Reveal()
	told := s.stateLocked()
	s.events.emitLocked(wire.Event{Kind: wire.EventState, State: &told})
}

// veilLocked removes the content of the terminal from a state.
func (v *private) veilLocked(st *wire.State) {
	s := v.s
	if s.keyboard.Private() != nil {
		st.Prompt, st.LastLine, st.Foreground, st.Cwd, st.Reason = "", "", nil, "", ""
		st.Shell, st.Program, st.LooksLikeShell = nil, "", false
		st.Offset = min(st.Offset, s.log.shown())
	}
}

// secretLocked reports whether an event is about input of private mode, and must not be sent.
func (v *private) secretLocked(ev wire.Event) bool {
	s := v.s
	switch ev.Kind {
	case wire.EventBegun, wire.EventOver:
		return s.keyboard.Private() != nil && ev.Op == ""
	case wire.EventInput:
		return s.keyboard.Private() != nil
	}
	return false
}

// byLocked returns the party in private mode, or "".
func (v *private) byLocked() string {
	s := v.s
	if p := s.keyboard.Private(); p != nil {
		return p.String()
	}
	return ""
}

// sees reports whether p may see the terminal.
func (v *private) sees(p *party) bool {
	s := v.s
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keyboard.Sees(&p.Party)
}

// pictureLocked returns a copy of the screen. d.mu is held.
func (d *display) pictureLocked() *picture {
	b := &picture{alt: d.screen.Modes().AltScreen}
	_, rows := d.screen.Size()
	for y := range rows {
		b.lines = append(b.lines, d.screen.LineText(y))
	}
	return b
}

// coverLocked returns output that erases the lines that differ from before, or all lines if before
// is unknown. It sets cursor and modes to those of this screen, for screens without the private
// output. d.mu is held.
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
				b = append(strconv.AppendInt(append(b, "\x1b["...), int64(y+1), 10),
					";1H\x1b[2K"...)
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

// veiledLocked reports whether the screen shows private output. d.mu is held.
func (d *display) veiledLocked() bool {
	return d.fed < d.veil || d.fed > d.s.log.shown()
}
