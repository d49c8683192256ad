package screen

import "unicode/utf8"

// maxCluster limits the text of one cell in bytes. Further joining runes are dropped.
const maxCluster = 64

func (s *Screen) setPen(st Style) {
	s.pen = st
	s.penMeta = s.intern.style(st)<<2 | 1
	s.eraseCell = blank
	if st.Bg != 0 {
		s.eraseCell.meta = s.intern.style(Style{Bg: st.Bg})<<2 | 1
	}
}

// printASCII prints printable ASCII. It must be fast, because it handles nearly all output.
func (s *Screen) printASCII(p []byte) {
	if s.charsets[s.gl] != charsetASCII || s.modes.Insert {
		for _, b := range p {
			s.print(s.charsets[s.gl].translate(rune(b)))
		}
		return
	}
	s.repeatable = true
	for len(p) > 0 {
		if s.x >= s.cols {
			if s.modes.AutoWrap {
				s.wrap()
			} else {
				s.x = s.cols - 1
				p = p[len(p)-1:] // each character overwrites the last column
			}
		}
		n := min(len(p), s.cols-s.x)
		end := s.x + n
		r := s.touch(s.y)
		if s.x < len(r.cells) {
			r.splitAt(s.x, s.penCell())
			r.splitAt(end, s.penCell())
		}
		if end > len(r.cells) {
			r.extend(s.x, s.cols)
			r.expose(end, s.cols)
		}
		cells := r.cells[s.x:end]
		meta := s.penMeta
		for i, b := range p[:len(cells)] {
			cells[i] = cell{ch: uint32(b), meta: meta}
		}
		s.x = end
		p = p[n:]
	}
}

// penCell returns a blank in the pen's style. It replaces one half of a wide character when the
// other half is overwritten.
func (s *Screen) penCell() cell { return cell{ch: ' ', meta: s.penMeta} }

// wrap moves to the start of the next row, because the text has reached the margin.
func (s *Screen) wrap() {
	s.touch(s.y).wrapped = true
	s.x = 0
	s.index()
}

// print prints one rune at the cursor.
func (s *Screen) print(r rune) {
	if r >= 0x80 && r < 0xa0 {
		return // 8-bit controls are neither executed nor shown
	}
	w := runeWidth(r)
	switch {
	case w == 0:
		s.join(r)
		return
	case r == lineSeparator || r == paragraphSeparator:
		r = ' ' // terminals start no new line here, and neither may text that a person sees
	}
	s.place(uint32(r), w)
}

// place puts a cluster of width w at the cursor and moves the cursor. ch is as in cell.
func (s *Screen) place(ch uint32, w int) {
	s.repeatable = true
	if s.x+w > s.cols {
		switch {
		case w > s.cols:
			return
		case s.modes.AutoWrap:
			if s.x < s.cols {
				// This blank is not a part of the text. It is not stored, so that it disappears
				// when the line is rewrapped.
				s.fill(s.y, s.x, s.cols, s.penCell())
			}
			s.wrap()
		default:
			s.x = s.cols - 1
			if w == 2 {
				return // no space
			}
		}
	}
	if s.modes.Insert {
		s.insertCells(s.y, s.x, w, s.penCell())
	}
	s.put(s.y, s.x, w, ch, s.penMeta)
	s.x += w
}

// put writes a cluster of width w at column x of row y, with the style of meta.
func (s *Screen) put(y, x, w int, ch, meta uint32) {
	r := s.touch(y)
	r.splitAt(x+w, s.penCell())
	r.splitAt(x, s.penCell())
	r.extend(x+w, s.cols)
	r.cells[x] = cell{ch: ch, meta: meta&^3 | uint32(w)}
	if w == 2 {
		r.cells[x+1] = continuation(meta)
	}
}

// before returns the column of the cluster left of the cursor, or -1 if there is none.
func (s *Screen) before() int {
	x := s.x - 1
	if x > 0 && s.g.rows[s.y].at(x).width() == 0 {
		x--
	}
	return x
}

// join adds r, a rune without a column, to the cluster left of the cursor. Two runes with columns
// are never joined, because programs count columns by rune, as wcwidth does.
func (s *Screen) join(r rune) {
	x := s.before()
	if x < 0 || invisible(r) {
		return
	}
	c := s.g.rows[s.y].at(x)
	text := utf8.AppendRune(s.intern.appendText(s.intern.buf[:0], c), r)
	s.intern.buf = text
	if len(text) <= maxCluster {
		s.put(s.y, x, c.width(), s.intern.cluster(text), c.meta)
	}
}

// repeat executes REP. It does not leave its line, so that a large number causes no more work than
// a line.
func (s *Screen) repeat(n int) {
	x := s.before()
	if !s.repeatable || x < 0 {
		return
	}
	c := s.g.rows[s.y].at(x)
	for range min(n, (s.cols-s.x)/max(c.width(), 1)) {
		s.place(c.ch, c.width())
	}
}
