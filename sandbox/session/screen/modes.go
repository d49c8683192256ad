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
func (t *terminal) setMode(private bool, n int, on bool) {
	if !private {
		switch n {
		case 4:
			t.modes.Insert = on
		case 20:
			t.newline = on
		}
		return
	}
	switch n {
	case 6:
		t.modes.Origin = on
		t.moveTo(0, 0)
	case 9, 1000, 1002, 1003:
		// The last mode set counts. Resetting any of them disables all, as in xterm.
		t.modes.Mouse = MouseOff
		if on {
			t.modes.Mouse = Mouse(n)
		}
	case 1005, 1006, 1015:
		switch {
		case on:
			t.modes.MouseEncoding = MouseEncoding(n)
		default:
			t.modes.MouseEncoding = MouseDefault
		}
	case 47, 1047:
		t.switchScreen(on)
	case 1048:
		if on {
			t.saveCursor()
		} else {
			t.restoreCursor()
		}
	case 1049:
		if on {
			t.saveCursor()
			t.switchScreen(true)
		} else {
			t.switchScreen(false)
			t.restoreCursor()
		}
	default:
		if m := t.flag(n); m != nil {
			*m = on
		}
	}
}

// flag returns the private mode n if it is only a flag, or nil.
func (t *terminal) flag(n int) *bool {
	switch n {
	case 1:
		return &t.modes.AppCursor
	case 7:
		return &t.modes.AutoWrap
	case 12:
		return &t.modes.CursorBlink
	case 25:
		return &t.modes.CursorVisible
	case 66:
		return &t.modes.AppKeypad
	case 1004:
		return &t.modes.FocusEvents
	case 2004:
		return &t.modes.BracketedPaste
	case 2026:
		return &t.modes.Synchronized
	}
	return nil
}

// modeState returns the answer to DECRQM: 0 for an unknown mode, 1 for set, 2 for reset.
func (t *terminal) modeState(private bool, n int) int {
	var on bool
	switch {
	case !private && n == 4:
		on = t.modes.Insert
	case !private && n == 20:
		on = t.newline
	case !private:
		return 0
	case t.flag(n) != nil:
		on = *t.flag(n)
	default:
		switch n {
		case 6:
			on = t.modes.Origin
		case 9, 1000, 1002, 1003:
			on = t.modes.Mouse == Mouse(n)
		case 1005, 1006, 1015:
			on = t.modes.MouseEncoding == MouseEncoding(n)
		case 47, 1047, 1049:
			on = t.modes.AltScreen
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
func (t *terminal) switchScreen(alt bool) {
	if alt == t.modes.AltScreen {
		return
	}
	t.modes.AltScreen = alt
	t.g = &t.primary
	if alt {
		if t.alternate.rows == nil {
			t.alternate.rows = newRows(t.rows)
		}
		t.g = &t.alternate
		t.g.reset(t.cols, t.rows)
		t.eraseRows(0, t.rows)
	}
	t.generation++
	// Rows keep their generations while the other screen is shown. Rows that a resize has added
	// meanwhile have none yet.
	for y, r := range t.g.rows {
		if r.gen == 0 {
			t.touch(y)
		}
	}
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
func (t *terminal) softReset() {
	t.setPen(Style{})
	t.g.top, t.g.bottom = 0, t.rows-1
	t.charsets, t.gl = [4]charset{}, 0
	t.modes = Modes{
		AutoWrap: true, CursorVisible: true,
		AltScreen: t.modes.AltScreen, CursorBlink: t.modes.CursorBlink, Mouse: t.modes.Mouse,
		MouseEncoding: t.modes.MouseEncoding,
	}
	t.cursor = 0
	*t.savedSlot() = savedCursor{}
}
