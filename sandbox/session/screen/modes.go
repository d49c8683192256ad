package screen

// Mouse says which mouse events a program has requested, with the numbers of DECSET.
type Mouse uint16

// Mouse tracking modes.
const (
	MouseOff    Mouse = 0
	MouseX10    Mouse = 9    // presses
	MouseNormal Mouse = 1000 // presses and releases
	MouseButton Mouse = 1002 // also motion while a button is held
	MouseAny    Mouse = 1003 // also all motion
)

// MouseEncoding is the encoding of mouse events, with the numbers of DECSET.
type MouseEncoding uint16

// Mouse encodings.
const (
	MouseDefault MouseEncoding = 0
	MouseUTF8    MouseEncoding = 1005
	MouseSGR     MouseEncoding = 1006
	MouseURXVT   MouseEncoding = 1015
)

// Modes are the modes that a program has set. They are comparable.
type Modes struct {
	AltScreen      bool
	AppCursor      bool // DECCKM: arrow keys send SS3
	AppKeypad      bool // DECKPAM
	AutoWrap       bool
	BracketedPaste bool
	CursorBlink    bool
	CursorVisible  bool
	FocusEvents    bool
	Insert         bool // IRM
	Origin         bool // DECOM
	Synchronized   bool // mode 2026: the program is drawing
	Mouse          Mouse
	MouseEncoding  MouseEncoding
}

// setMode executes SM, RM, DECSET and DECRST for one mode. It ignores unknown modes.
func (s *Screen) setMode(private bool, n int, on bool) {
	if !private {
		switch n {
		case 4:
			s.modes.Insert = on
		case 20:
			s.newline = on
		}
		return
	}
	switch n {
	case 6:
		s.modes.Origin = on
		s.moveTo(0, 0)
	case 9, 1000, 1002, 1003:
		// The last mode set counts. Resetting any of them disables all, as in xterm.
		s.modes.Mouse = MouseOff
		if on {
			s.modes.Mouse = Mouse(n)
		}
	case 1005, 1006, 1015:
		switch {
		case on:
			s.modes.MouseEncoding = MouseEncoding(n)
		default:
			s.modes.MouseEncoding = MouseDefault
		}
	case 47, 1047:
		s.switchScreen(on)
	case 1048:
		if on {
			s.saveCursor()
		} else {
			s.restoreCursor()
		}
	case 1049:
		if on {
			s.saveCursor()
			s.switchScreen(true)
		} else {
			s.switchScreen(false)
			s.restoreCursor()
		}
	default:
		if m := s.flag(n); m != nil {
			*m = on
		}
	}
}

// flag returns the private mode n if it is only a flag, or nil.
func (s *Screen) flag(n int) *bool {
	switch n {
	case 1:
		return &s.modes.AppCursor
	case 7:
		return &s.modes.AutoWrap
	case 12:
		return &s.modes.CursorBlink
	case 25:
		return &s.modes.CursorVisible
	case 66:
		return &s.modes.AppKeypad
	case 1004:
		return &s.modes.FocusEvents
	case 2004:
		return &s.modes.BracketedPaste
	case 2026:
		return &s.modes.Synchronized
	}
	return nil
}

// modeState returns the answer to DECRQM: 0 for an unknown mode, 1 for set, 2 for reset.
func (s *Screen) modeState(private bool, n int) int {
	var on bool
	switch {
	case !private && n == 4:
		on = s.modes.Insert
	case !private && n == 20:
		on = s.newline
	case !private:
		return 0
	case s.flag(n) != nil:
		on = *s.flag(n)
	default:
		switch n {
		case 6:
			on = s.modes.Origin
		case 9, 1000, 1002, 1003:
			on = s.modes.Mouse == Mouse(n)
		case 1005, 1006, 1015:
			on = s.modes.MouseEncoding == MouseEncoding(n)
		case 47, 1047, 1049:
			on = s.modes.AltScreen
		default:
			return 0
		}
	}
	if on {
		return 1
	}
	return 2
}

// switchScreen activates the alternate or the primary screen. The alternate screen starts empty.
// The cursor stays where it is.
func (s *Screen) switchScreen(alt bool) {
	if alt == s.modes.AltScreen {
		return
	}
	s.modes.AltScreen = alt
	s.g = &s.primary
	if alt {
		if s.alternate.rows == nil {
			s.alternate.rows = newRows(s.rows)
		}
		s.g = &s.alternate
		s.g.reset(s.cols, s.rows)
		s.eraseRows(0, s.rows)
	}
	s.generation++
	// Rows keep their generations while the other screen is shown. Rows that a resize has added
	// meanwhile have none yet.
	for y, r := range s.g.rows {
		if r.gen == 0 {
			s.touch(y)
		}
	}
}

// savedCursor is the state that DECSC saves, separately for each of the two screens.
type savedCursor struct {
	x, y     int
	pen      Style
	charsets [4]charset
	gl       uint8
}

func (s *Screen) savedSlot() *savedCursor {
	if s.modes.AltScreen {
		return &s.saved[1]
	}
	return &s.saved[0]
}

func (s *Screen) saveCursor() {
	*s.savedSlot() = savedCursor{x: s.x, y: s.y, pen: s.pen, charsets: s.charsets, gl: s.gl}
}

// restoreCursor restores the saved state, or the home position with defaults if none was saved.
func (s *Screen) restoreCursor() {
	c := *s.savedSlot()
	s.x = c.x
	s.moveRow(c.y)
	s.setPen(c.pen)
	s.charsets, s.gl = c.charsets, c.gl
}

// reset executes RIS: the screen is like a new one of the same size, without kept lines.
func (s *Screen) reset() {
	s.g = &s.primary
	s.alternate.rows = nil
	s.below = nil
	s.history.clear()
	s.setPen(Style{})
	s.modes = Modes{}
	s.softReset()
	s.newline = false
	s.x, s.y = 0, 0
	s.saved = [2]savedCursor{}
	s.g.reset(s.cols, s.rows)
	s.title = ""
	if s.status != "" {
		s.report([]byte("state=clear"))
	}
	s.eraseRows(0, s.rows)
}

// softReset executes DECSTR. Of the modes, it keeps the active screen, the blinking of the cursor,
// and the mouse modes.
func (s *Screen) softReset() {
	s.setPen(Style{})
	s.g.top, s.g.bottom = 0, s.rows-1
	s.charsets, s.gl = [4]charset{}, 0
	s.modes = Modes{
		AutoWrap: true, CursorVisible: true,
		AltScreen: s.modes.AltScreen, CursorBlink: s.modes.CursorBlink, Mouse: s.modes.Mouse,
		MouseEncoding: s.modes.MouseEncoding,
	}
	s.cursor = 0
	*s.savedSlot() = savedCursor{}
}
