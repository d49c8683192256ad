package screen

// csiDispatch executes the control sequence in the parser: private marker, parameters and
// intermediate byte. It ignores unknown sequences.
func (s *Screen) csiDispatch(final byte) {
	ps := &s.parser
	if final != 'm' {
		ps.dropSubs()
	}
	if final == 'b' && ps.private == 0 && ps.inter == 0 {
		s.repeat(s.parser.param(0, 1))
	}
	s.interrupted()
	switch {
	case ps.private == 0 && ps.inter == 0:
		s.csiPlain(final)
	case ps.private == '?' && ps.inter == 0:
		s.csiPrivate(final)
	case ps.inter == ' ' && ps.private == 0 && final == 'q': // DECSCUSR
		if n := s.parser.param(0, 0); n <= 6 {
			s.cursor = CursorStyle(n)
		}
	case ps.inter == '!' && ps.private == 0 && final == 'p': // DECSTR
		s.softReset()
	case ps.private == 0 && (ps.inter == ' ' && (final == '@' || final == 'A') ||
		ps.inter == '\'' && (final == '}' || final == '~')):
		s.shiftColumns(ps.inter == '\'', final, ps.param(0, 1))
	default:
		s.query(final)
	}
}

func (s *Screen) csiPlain(final byte) {
	n := s.parser.param(0, 1)
	switch final {
	case '@':
		s.x = min(s.x, s.cols-1)
		s.insertCells(s.y, s.x, n, s.eraseCell)
	case 'A':
		s.moveUp(n)
	case 'B':
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
		s.moveTo(n-1, s.parser.param(1, 1)-1)
	case 'I':
		s.tab(n)
	case 'J':
		s.eraseDisplay(s.parser.param(0, 0))
	case 'K':
		s.eraseLine(s.parser.param(0, 0))
	case 'L':
		s.x = min(s.x, s.cols-1)
		if s.y >= s.g.top && s.y <= s.g.bottom {
			s.scrollDown(s.y, s.g.bottom, n, s.eraseCell)
			s.x = 0
		}
	case 'M':
		s.x = min(s.x, s.cols-1)
		if s.y >= s.g.top && s.y <= s.g.bottom {
			s.scrollUp(s.y, s.g.bottom, n, false)
			s.x = 0
		}
	case 'P':
		s.x = min(s.x, s.cols-1)
		s.deleteCells(s.y, s.x, n)
	case 'S':
		s.scrollUp(s.g.top, s.g.bottom, n, true)
	case 'T':
		if s.parser.nparams <= 1 { // with five parameters, it is mouse highlighting
			s.scrollDown(s.g.top, s.g.bottom, n, blank)
		}
	case 'X':
		s.x = min(s.x, s.cols-1)
		s.erase(s.y, s.x, s.x+n)
	case 'Z':
		s.tab(-n)
	case 'e':
		s.moveRow(s.y + n)
	case 'd':
		s.moveTo(n-1, s.x)
	case 'g':
		switch s.parser.param(0, 0) {
		case 0:
			if s.x < s.cols {
				s.g.setTab(s.x, false)
			}
		case 3:
			s.g.tabs = [len(s.g.tabs)]uint64{}
		}
	case 'h', 'l':
		for i := range s.parser.nparams {
			s.setMode(false, s.parser.params[i], final == 'h')
		}
	case 'm':
		s.sgr()
	case 'r':
		s.setRegion(s.parser.param(0, 1)-1, s.parser.param(1, s.rows)-1)
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
		// DECSED and DECSEL do not erase protected cells; we have none.
		s.csiPlain(final)
	default:
		s.query(final)
	}
}
