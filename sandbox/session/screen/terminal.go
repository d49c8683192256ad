package screen

// terminal is what control sequences change: a page, and the cursor and the modes with which
// programs write on it.
type terminal struct {
	page

	// x == cols means that the next character first wraps, or overwrites the last column.
	x, y     int
	charsets [4]charset
	gl       uint8 // charset in use, 0 for G0
	saved    [2]savedCursor
	modes    Modes
	newline  bool // LNM: line feed includes carriage return
	cursor   CursorStyle

	repeatable bool // REP may repeat the last character: only text was printed since
}

// CursorStyle is the shape of the cursor, with the numbers of DECSCUSR. 0 is the terminal's
// default.
type CursorStyle uint8

// Cursor is the position of the next character. X is less than the number of columns, even if the
// next character wraps first.
type Cursor struct {
	X, Y    int
	Visible bool
	Style   CursorStyle
}

// Cursor returns the cursor of the active screen.
func (t *terminal) Cursor() Cursor {
	return Cursor{X: min(t.x, t.cols-1), Y: t.y, Visible: t.modes.CursorVisible, Style: t.cursor}
}

// Modes returns the modes that the program has set.
func (t *terminal) Modes() Modes { return t.modes }

// interrupted records that the output was not only text.
func (t *terminal) interrupted() {
	t.repeatable = false
	t.generation++
}

// lineFeed is index after the end of a line: the next row is not its continuation.
func (t *terminal) lineFeed() {
	t.g.rows[t.y].wrapped = false
	t.index()
}

// index moves the cursor down. In the last row of the region, it scrolls the region instead.
func (t *terminal) index() {
	switch {
	case t.y == t.g.bottom:
		t.scrollLine()
	case t.y < t.rows-1:
		t.y++
	}
}

func (t *terminal) reverseIndex() {
	switch {
	case t.y == t.g.top:
		t.scrollDown(t.g.top, t.g.bottom, 1, t.eraseCell)
	case t.y > 0:
		t.y--
	}
}

// span returns the first and last row to which cursor positioning can move.
func (t *terminal) span() (first, last int) {
	if t.modes.Origin {
		return t.g.top, t.g.bottom
	}
	return 0, t.rows - 1
}

// moveTo moves the cursor to row y and column x, relative to the region in origin mode.
func (t *terminal) moveTo(y, x int) {
	first, last := t.span()
	t.y = min(max(first+y, first), last)
	t.x = min(max(x, 0), t.cols-1)
}

// moveUp moves the cursor up. Like moveDown, it stops at the region's edge if it starts within the
// region.
func (t *terminal) moveUp(n int) {
	first := 0
	if t.y >= t.g.top {
		first = t.g.top
	}
	t.y = max(t.y-n, first)
	t.x = min(t.x, t.cols-1)
}

func (t *terminal) moveDown(n int) {
	last := t.rows - 1
	if t.y <= t.g.bottom {
		last = t.g.bottom
	}
	t.y = min(t.y+n, last)
	t.x = min(t.x, t.cols-1)
}

// moveRow moves the cursor to row y of the screen, within the region in origin mode.
func (t *terminal) moveRow(y int) {
	first, last := t.span()
	t.y = min(max(y, first), last)
	t.x = min(t.x, t.cols-1)
}

func (t *terminal) moveColumn(x int) { t.x = min(max(x, 0), t.cols-1) }

// tab moves the cursor by n tab stops, to the left if n is negative. If a wrap is pending, it does
// nothing.
func (t *terminal) tab(n int) {
	if t.x >= t.cols {
		return
	}
	for ; n > 0 && t.x < t.cols-1; n-- {
		for t.x++; t.x < t.cols-1 && !t.g.tabAt(t.x); t.x++ {
		}
	}
	for ; n < 0 && t.x > 0; n++ {
		for t.x--; t.x > 0 && !t.g.tabAt(t.x); t.x-- {
		}
	}
}

func (t *terminal) setRegion(top, bottom int) {
	bottom = min(bottom, t.rows-1)
	if top >= bottom {
		return
	}
	t.g.top, t.g.bottom = top, bottom
	t.moveTo(0, 0)
}

// shiftColumns executes SL, SR, DECIC and DECDC. It inserts or deletes columns in all rows of the
// region, at the left edge or at the cursor.
func (t *terminal) shiftColumns(atCursor bool, final byte, n int) {
	if t.y < t.g.top || t.y > t.g.bottom {
		return
	}
	x := 0
	if atCursor {
		x = min(t.x, t.cols-1)
	}
	for y := t.g.top; y <= t.g.bottom; y++ {
		if final == 'A' || final == '}' {
			t.insertCells(y, x, n, t.eraseCell)
		} else {
			t.deleteCells(y, x, n)
		}
	}
}

// eraseDisplay executes ED. If a wrap is pending, it stays, and the last column is not erased, as
// in tmux and xterm.js. grep --color relies on it.
func (t *terminal) eraseDisplay(how int) {
	switch how {
	case 0:
		t.scrolling()
		t.erase(t.y, t.x, t.cols)
		t.eraseRows(t.y+1, t.rows)
	case 1:
		t.eraseRows(0, t.y)
		t.erase(t.y, 0, t.x+1)
	case 2:
		t.scrolling()
		t.eraseRows(0, t.rows)
	case 3:
		t.history.clear()
	}
}

func (t *terminal) eraseLine(how int) {
	switch how {
	case 0:
		t.erase(t.y, t.x, t.cols)
	case 1:
		t.erase(t.y, 0, t.x+1)
	case 2:
		t.erase(t.y, 0, t.cols)
	}
}

// savedCursor is the state that DECSC saves, separately for each of the two screens.
type savedCursor struct {
	x, y     int
	pen      Style
	charsets [4]charset
	gl       uint8
}

func (t *terminal) savedSlot() *savedCursor {
	if t.modes.AltScreen {
		return &t.saved[1]
	}
	return &t.saved[0]
}

func (t *terminal) saveCursor() {
	*t.savedSlot() = savedCursor{x: t.x, y: t.y, pen: t.pen, charsets: t.charsets, gl: t.gl}
}

// restoreCursor restores the saved state, or the home position with defaults if none was saved.
func (t *terminal) restoreCursor() {
	c := *t.savedSlot()
	t.x = c.x
	t.moveRow(c.y)
	t.setPen(c.pen)
	t.charsets, t.gl = c.charsets, c.gl
}

// designate selects a set for one of G0 to G3, which the intermediate byte determines.
func (t *terminal) designate(inter, final byte) {
	set := charset(final)
	if set != charsetLines && set.national() == "" {
		set = charsetASCII
	}
	switch inter {
	case '(', ')', '*', '+':
		t.charsets[inter-'('] = set
	case '-', '.':
		t.charsets[inter-'-'+1] = set
	}
}
