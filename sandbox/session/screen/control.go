package screen

// control carries out a C0 control character.
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
		s.index()
	case '\r':
		s.x = 0
	case 0x0e:
		s.gl = 1
	case 0x0f:
		s.gl = 0
	}
}

// escapeDispatch carries out ESC, an intermediate byte or 0, and a final byte.
func (s *Screen) escapeDispatch(inter, final byte) {
	if inter == 0 && final == '\\' {
		return // the end of a string that was dropped
	}
	s.interrupted()
	switch inter {
	case 0:
		s.escapeFinal(final)
	case '(', ')', '*', '+':
		set := charsetASCII
		switch final {
		case '0':
			set = charsetLines
		case 'A':
			set = charsetUK
		}
		s.charsets[inter-'('] = set
	case '#':
		if final == '8' { // DECALN
			s.top, s.bottom = 0, s.rows-1
			s.x, s.y = 0, 0
			for y := range s.rows {
				s.touch(y).clear(cell{ch: 'E', meta: blank.meta})
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
		s.index()
	case 'E':
		s.x = 0
		s.index()
	case 'H':
		s.setTab(min(s.x, s.cols-1), true)
	case 'M':
		s.x = min(s.x, s.cols-1)
		s.reverseIndex()
	case 'N':
		s.single = 2
	case 'O':
		s.single = 3
	case 'Z':
		s.answer("\x1b[?62;22c")
	case 'c':
		s.reset()
	case 'n':
		s.gl = 2
	case 'o':
		s.gl = 3
	}
}

// index moves the cursor down, scrolling the region when it stands on its last row.
func (s *Screen) index() {
	switch {
	case s.y == s.bottom:
		s.scrollUp(s.top, s.bottom, 1, true)
	case s.y < s.rows-1:
		s.y++
	}
}

func (s *Screen) reverseIndex() {
	switch {
	case s.y == s.top:
		s.scrollDown(s.top, s.bottom, 1)
	case s.y > 0:
		s.y--
	}
}

// moveTo moves the cursor to row y and column x, from the region's corner in origin mode.
func (s *Screen) moveTo(y, x int) {
	first, last := 0, s.rows-1
	if s.modes.Origin {
		first, last = s.top, s.bottom
	}
	s.y = min(max(first+y, first), last)
	s.x = min(max(x, 0), s.cols-1)
}

// moveUp and moveDown stop at the region's edge when they begin inside of it.
func (s *Screen) moveUp(n int) {
	first := 0
	if s.y >= s.top {
		first = s.top
	}
	s.y = max(s.y-n, first)
	s.x = min(s.x, s.cols-1)
}

func (s *Screen) moveDown(n int) {
	last := s.rows - 1
	if s.y <= s.bottom {
		last = s.bottom
	}
	s.y = min(s.y+n, last)
	s.x = min(s.x, s.cols-1)
}

func (s *Screen) moveColumn(x int) { s.x = min(max(x, 0), s.cols-1) }

func (s *Screen) setTab(x int, on bool) {
	if on {
		s.tabs[x/64] |= 1 << (x % 64)
	} else {
		s.tabs[x/64] &^= 1 << (x % 64)
	}
}

// resetTabs puts a tab stop at every eighth column from column from on.
func (s *Screen) resetTabs(from int) {
	for x := from; x < MaxCols; x++ {
		s.setTab(x, x%8 == 0)
	}
}

// tab moves over n tab stops, to the left when n is negative. A pending wrap stays.
func (s *Screen) tab(n int) {
	for ; n > 0 && s.x < s.cols-1; n-- {
		for s.x++; s.x < s.cols-1 && s.tabs[s.x/64]&(1<<(s.x%64)) == 0; s.x++ {
		}
	}
	for ; n < 0 && s.x > 0; n++ {
		for s.x = min(s.x, s.cols-1) - 1; s.x > 0 && s.tabs[s.x/64]&(1<<(s.x%64)) == 0; s.x-- {
		}
	}
	s.x = max(s.x, 0)
}
