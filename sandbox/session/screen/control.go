package screen

// control executes a C0 control character.
func (s *Screen) control(b byte) {
	s.interrupted()
	switch b {
	case '\a':
		s.notify(NoticeBell, "")
	case '\b':
		s.x = max(min(s.x, s.cols-1)-1, 0)
	case '\t':
		s.tab(1)
	case '\n', '\v', '\f':
		s.x = min(s.x, s.cols-1)
		if s.newline {
			s.x = 0
		}
		s.lineFeed()
	case '\r':
		s.x = 0
	case 0x0e:
		s.gl = 1
	case 0x0f:
		s.gl = 0
	}
}

// escapeDispatch executes an escape sequence. inter is its intermediate byte or 0.
func (s *Screen) escapeDispatch(inter, final byte) {
	s.interrupted()
	switch inter {
	case 0:
		s.escapeFinal(final)
	case '(', ')', '*', '+', '-', '.':
		s.designate(inter, final)
	case '%':
		if final == '@' || final == 'G' { // selects UTF-8 or Latin-1; we always use UTF-8
			s.charsets[0], s.gl = charsetASCII, 0
		}
	case '#':
		if final == '8' { // DECALN
			st := s.pen
			st.Underline, st.UnderlineColor = NoUnderline, 0
			s.moveTo(0, 0)
			for y := range s.rows {
				s.touch(y).clear(cell{ch: 'E', meta: s.intern.style(st)<<2 | 1})
			}
		}
	}
}

func (s *Screen) escapeFinal(final byte) {
	switch final {
	case '7':
		s.saveCursor()
	case '8':
		s.restoreCursor()
	case '=':
		s.modes.AppKeypad = true
	case '>':
		s.modes.AppKeypad = false
	case 'D':
		s.x = min(s.x, s.cols-1)
		s.lineFeed()
	case 'E':
		s.x = 0
		s.lineFeed()
	case 'H':
		if s.x < s.cols {
			s.g.setTab(s.x, true)
		}
	case 'M':
		s.x = min(s.x, s.cols-1)
		s.reverseIndex()
	case 'Z':
		s.answer("\x1b[?62;22c")
	case 'c':
		s.reset()
	case '~':
		s.gl = 1
	case 'n', '}':
		s.gl = 2
	case 'o', '|':
		s.gl = 3
	}
}

// lineFeed is index after the end of a line: the next row is not its continuation.
func (s *Screen) lineFeed() {
	s.g.rows[s.y].wrapped = false
	s.index()
}

// index moves the cursor down. In the last row of the region, it scrolls the region instead.
func (s *Screen) index() {
	switch {
	case s.y == s.g.bottom:
		s.scrollLine()
	case s.y < s.rows-1:
		s.y++
	}
}

func (s *Screen) reverseIndex() {
	switch {
	case s.y == s.g.top:
		s.scrollDown(s.g.top, s.g.bottom, 1, s.eraseCell)
	case s.y > 0:
		s.y--
	}
}

// span returns the first and last row to which cursor positioning can move.
func (s *Screen) span() (first, last int) {
	if s.modes.Origin {
		return s.g.top, s.g.bottom
	}
	return 0, s.rows - 1
}

// moveTo moves the cursor to row y and column x, relative to the region in origin mode.
func (s *Screen) moveTo(y, x int) {
	first, last := s.span()
	s.y = min(max(first+y, first), last)
	s.x = min(max(x, 0), s.cols-1)
}

// moveUp moves the cursor up. Like moveDown, it stops at the region's edge if it starts within the
// region.
func (s *Screen) moveUp(n int) {
	first := 0
	if s.y >= s.g.top {
		first = s.g.top
	}
	s.y = max(s.y-n, first)
	s.x = min(s.x, s.cols-1)
}

func (s *Screen) moveDown(n int) {
	last := s.rows - 1
	if s.y <= s.g.bottom {
		last = s.g.bottom
	}
	s.y = min(s.y+n, last)
	s.x = min(s.x, s.cols-1)
}

// moveRow moves the cursor to row y of the screen, within the region in origin mode.
func (s *Screen) moveRow(y int) {
	first, last := s.span()
	s.y = min(max(y, first), last)
	s.x = min(s.x, s.cols-1)
}

func (s *Screen) moveColumn(x int) { s.x = min(max(x, 0), s.cols-1) }

func (g *grid) tabAt(x int) bool { return g.tabs[x/64]&(1<<(x%64)) != 0 }

func (g *grid) setTab(x int, on bool) {
	if on {
		g.tabs[x/64] |= 1 << (x % 64)
	} else {
		g.tabs[x/64] &^= 1 << (x % 64)
	}
}

// tab moves the cursor by n tab stops, to the left if n is negative. If a wrap is pending, it does
// nothing.
func (s *Screen) tab(n int) {
	if s.x >= s.cols {
		return
	}
	for ; n > 0 && s.x < s.cols-1; n-- {
		for s.x++; s.x < s.cols-1 && !s.g.tabAt(s.x); s.x++ {
		}
	}
	for ; n < 0 && s.x > 0; n++ {
		for s.x--; s.x > 0 && !s.g.tabAt(s.x); s.x-- {
		}
	}
}
