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
