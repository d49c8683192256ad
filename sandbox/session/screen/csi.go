package screen

// csiDispatch carries out a control sequence with the private marker, parameters and intermediate byte that the parser holds.
// Sequences that we do not know do nothing.
func (s *Screen) csiDispatch(final byte) {
	ps := &s.parser
	last := s.last
	s.interrupted()
	switch {
	case ps.private == 0 && ps.inter == 0:
		if final == 'b' {
			s.repeat(last, s.param(0, 1))
			return
		}
		s.csiPlain(final)
	case ps.private == '?' && ps.inter == 0:
		s.csiPrivate(final)
	case ps.inter == ' ' && ps.private == 0 && final == 'q': // DECSCUSR
		if n := s.param(0, 0); n <= 6 {
			s.cursor = CursorStyle(n)
		}
	case ps.inter == '!' && ps.private == 0 && final == 'p': // DECSTR
		s.softReset()
	default:
		s.query(final)
	}
}

func (s *Screen) csiPlain(final byte) {
	n := s.param(0, 1)
	switch final {
	case '@':
		s.insertCells(s.y, s.x, n, s.eraseCell)
	case 'A':
		s.moveUp(n)
	case 'B', 'e':
		s.moveDown(n)
	case 'C', 'a':
		s.moveColumn(min(s.x, s.cols-1) + n)
	case 'D':
		s.moveColumn(min(s.x, s.cols-1) - n)
	case 'E':
		s.moveDown(n)
		s.x = 0
	case 'F':
		s.moveUp(n)
		s.x = 0
	case 'G', '`':
		s.moveColumn(n - 1)
	case 'H', 'f':
		s.moveTo(n-1, s.param(1, 1)-1)
	case 'I':
		s.tab(n)
	case 'J':
		s.eraseDisplay(s.param(0, 0))
	case 'K':
		s.eraseLine(s.param(0, 0))
	case 'L':
		if s.y >= s.top && s.y <= s.bottom {
			s.scrollDown(s.y, s.bottom, n)
			s.x = 0
		}
	case 'M':
		if s.y >= s.top && s.y <= s.bottom {
			s.scrollUp(s.y, s.bottom, n, false)
			s.x = 0
		}
	case 'P':
		s.deleteCells(s.y, s.x, n)
	case 'S':
		s.scrollUp(s.top, s.bottom, n, true)
	case 'T':
		if s.parser.nparams <= 1 { // with five it is mouse highlighting
			s.scrollDown(s.top, s.bottom, n)
		}
	case 'X':
		s.erase(s.y, s.x, s.x+n)
	case 'Z':
		s.tab(-n)
	case 'd':
		s.moveTo(n-1, s.x)
	case 'g':
		switch s.param(0, 0) {
		case 0:
			s.setTab(min(s.x, s.cols-1), false)
		case 3:
			s.tabs = [len(s.tabs)]uint64{}
		}
	case 'h', 'l':
		for i := range s.parser.nparams {
			s.setMode(false, s.parser.params[i], final == 'h')
		}
	case 'm':
		s.sgr()
	case 'r':
		s.setRegion(s.param(0, 1)-1, s.param(1, s.rows)-1)
	case 's':
		s.saveCursor()
	case 'u':
		s.restoreCursor()
	default:
		s.query(final)
	}
}

func (s *Screen) csiPrivate(final byte) {
	switch final {
	case 'h', 'l':
		for i := range s.parser.nparams {
			s.setMode(true, s.parser.params[i], final == 'h')
		}
	case 'J', 'K':
		// DECSED and DECSEL spare protected cells; we have none.
		s.csiPlain(final)
	default:
		s.query(final)
	}
}

func (s *Screen) setRegion(top, bottom int) {
	bottom = min(bottom, s.rows-1)
	if top >= bottom {
		return
	}
	s.top, s.bottom = top, bottom
	s.moveTo(0, 0)
}

// eraseDisplay is ED. A pending wrap stays, and spares the last column, as in tmux and xterm.js: grep --color relies on it.
func (s *Screen) eraseDisplay(how int) {
	switch how {
	case 0:
		s.scrolling()
		s.erase(s.y, s.x, s.cols)
		s.eraseRows(s.y+1, s.rows)
	case 1:
		s.eraseRows(0, s.y)
		s.erase(s.y, 0, s.x+1)
	case 2:
		s.scrolling()
		s.eraseRows(0, s.rows)
	case 3:
		s.history.clear()
	}
}

func (s *Screen) eraseLine(how int) {
	switch how {
	case 0:
		s.erase(s.y, s.x, s.cols)
	case 1:
		s.erase(s.y, 0, s.x+1)
	case 2:
		s.erase(s.y, 0, s.cols)
	}
}

// repeat is REP. It stays on its line: no number makes it more than a line of work.
func (s *Screen) repeat(r rune, n int) {
	if r == 0 {
		return
	}
	for range min(n, (s.cols-min(s.x, s.cols))/max(runeWidth(r), 1)) {
		s.print(r)
	}
	s.last = r
}
