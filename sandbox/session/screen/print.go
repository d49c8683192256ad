package screen

import "unicode/utf8"

// maxCluster bounds the bytes of one cell's text; what joins it beyond that is dropped.
const maxCluster = 64

// charset is one of the character sets that G0 to G3 may hold.
type charset uint8

const (
	charsetASCII charset = iota
	charsetLines         // DEC special graphics
	charsetUK
)

// lineDrawing is what the runes from '_' to '~' are in the DEC special graphics set.
var lineDrawing = [...]rune{
	' ', '◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼', '⎺', '⎻', '─', '⎼', '⎽', '├', '┤', '┴', '┬',
	'│', '≤', '≥', 'π', '≠', '£', '·',
}

// translate maps an ASCII rune by the charset in use.
func (s *Screen) translate(r rune) rune {
	set := s.charsets[s.gl]
	if s.single != 0 {
		set = s.charsets[s.single]
		s.single = 0
	}
	switch {
	case set == charsetLines && r >= '_' && r <= '~':
		return lineDrawing[r-'_']
	case set == charsetUK && r == '#':
		return '£'
	}
	return r
}

func (s *Screen) setPen(st Style) {
	s.pen = st
	s.penMeta = s.intern.style(st)<<2 | 1
	s.eraseCell = blank
	if st.Bg != 0 {
		s.eraseCell.meta = s.intern.style(Style{Bg: st.Bg})<<2 | 1
	}
}

// printASCII prints a run of printable ASCII. It is the path that nearly all output takes.
func (s *Screen) printASCII(p []byte) {
	if s.charsets[s.gl] != charsetASCII || s.single != 0 || s.modes.Insert {
		for _, b := range p {
			s.print(rune(b))
		}
		return
	}
	s.joinable = true
	s.last = rune(p[len(p)-1])
	for len(p) > 0 {
		if s.x >= s.cols {
			s.wrap()
		}
		s.joinX = min(s.x+len(p), s.cols) - 1
		n := min(len(p), s.cols-s.x)
		end := s.x + n
		r := s.touch(s.y)
		if end < len(r.cells) {
			s.splitAt(r, end)
		}
		if s.x < len(r.cells) {
			s.splitAt(r, s.x)
		}
		if end > len(r.cells) {
			r.extend(s.x, s.cols)
			r.extend(end, s.cols)
		}
		cells := r.cells[s.x:end]
		meta := s.penMeta
		for i, b := range p[:n] {
			cells[i] = cell{ch: uint32(b), meta: meta}
		}
		s.x = end
		p = p[n:]
		if s.x == s.cols && !s.modes.AutoWrap {
			s.x = s.cols - 1
			if len(p) > 1 {
				p = p[len(p)-1:] // each one overwrites the last column
			}
		}
	}
}

// wrap goes to the start of the next line, as the text does that reached the margin.
func (s *Screen) wrap() {
	s.touch(s.y).wrapped = true
	s.x = 0
	s.index()
}

// print prints one rune at the cursor.
func (s *Screen) print(r rune) {
	if r < 0x80 {
		r = s.translate(r)
	} else {
		s.single = 0
	}
	if r >= 0x80 && r < 0xa0 {
		return // a control of the 8-bit set: neither obeyed nor shown
	}
	w := runeWidth(r)
	if w == 0 {
		s.join(r)
		return
	}
	if s.joinable && r >= 0x2000 && s.joinsBefore(r) {
		s.join(r)
		return
	}
	if s.x+w > s.cols {
		switch {
		case w > s.cols:
			return
		case s.modes.AutoWrap:
			s.wrap()
		case w == 2:
			return // no room left, as in tmux
		default:
			s.x = s.cols - 1
		}
	}
	if s.modes.Insert {
		s.insertCells(s.y, s.x, w, blank)
	}
	s.put(s.y, s.x, w, uint32(r), s.penMeta)
	s.joinX = s.x
	s.x += w
	if s.x == s.cols && !s.modes.AutoWrap {
		s.x = s.cols - 1
	}
	s.joinable = true
	s.last = r
}

// put writes one cluster of width w at column x of row y; meta gives the style.
func (s *Screen) put(y, x, w int, ch, meta uint32) {
	r := s.touch(y)
	s.splitAt(r, x+w)
	s.splitAt(r, x)
	r.extend(x+w, s.cols)
	r.cells[x] = cell{ch: ch, meta: meta&^3 | uint32(w)}
	if w == 2 {
		r.cells[x+1] = continuation(meta)
	}
}

// before is the column of the cluster that was just printed, else of the one left of the cursor, -1 when there is none.
func (s *Screen) before() int {
	if s.joinable {
		return s.joinX
	}
	x := s.x - 1
	if s.g.rows[s.y].at(max(x, 0)).width() == 0 {
		x--
	}
	return x
}

// joinsBefore reports whether r, which has a width of its own, joins the cluster that was printed just before it: the second half of
// a flag, a skin tone, what follows a joiner.
func (s *Screen) joinsBefore(r rune) bool {
	x := s.before()
	if x < 0 {
		return false
	}
	c := s.g.rows[s.y].at(x)
	if c.ch&clusterBit == 0 {
		base := rune(c.ch)
		return regionalIndicator(r) && regionalIndicator(base) && x+1 < s.cols || skinTone(r) && pictograph(base)
	}
	text := s.intern.text(c)
	tail, _ := utf8.DecodeLastRuneInString(text)
	head, _ := utf8.DecodeRuneInString(text)
	switch {
	case tail == zwj:
		return pictograph(head) && pictograph(r)
	case skinTone(r):
		// After the emoji style, or on the last of several joined pictographs.
		return pictograph(tail) || tail == emojiStyle && pictograph(head)
	}
	return false
}

// join adds r to the cluster left of the cursor.
func (s *Screen) join(r rune) {
	if invisible(r) {
		return
	}
	x := s.before()
	if x < 0 {
		return
	}
	c := s.g.rows[s.y].at(x)
	text := utf8.AppendRune(s.intern.appendText(s.intern.buf[:0], c), r)
	s.intern.buf = text
	if len(text) > maxCluster {
		return
	}
	w := c.width()
	if w == 1 && (r == emojiStyle && takesEmojiStyle(s.firstRune(c)) || regionalIndicator(r)) {
		if !s.joinable || x+1 == s.cols {
			return // no room to become wide: it stays the narrow character that it was
		}
		w = 2
	}
	grown := w - c.width()
	if grown > 0 && s.modes.Insert {
		s.insertCells(s.y, x+1, grown, blank)
	}
	s.put(s.y, x, w, s.intern.cluster(text), c.meta)
	s.x += grown
	if s.x == s.cols && !s.modes.AutoWrap {
		s.x = s.cols - 1
	}
}

func (s *Screen) firstRune(c cell) rune {
	if c.ch&clusterBit == 0 {
		return rune(c.ch)
	}
	r, _ := utf8.DecodeRuneInString(s.intern.text(c))
	return r
}
