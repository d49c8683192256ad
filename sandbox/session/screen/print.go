package screen

import "unicode/utf8"

// maxCluster limits the text of one cell in bytes. Further joining runes are dropped.
const maxCluster = 64

// printASCII prints printable ASCII. It must be fast, because it handles nearly all output.
func (t *terminal) printASCII(p []byte) {
	if t.charsets[t.gl] != charsetASCII || t.modes.Insert {
		for _, b := range p {
			t.print(t.charsets[t.gl].translate(rune(b)))
		}
		return
	}
	t.repeatable = true
	for len(p) > 0 {
		if t.x >= t.cols {
			if t.modes.AutoWrap {
				t.wrap()
			} else {
				t.x = t.cols - 1
				p = p[len(p)-1:] // each character overwrites the last column
			}
		}
		n := min(len(p), t.cols-t.x)
		end := t.x + n
		r := t.touch(t.y)
		if t.x < len(r.cells) {
			r.splitAt(t.x, t.penCell())
			r.splitAt(end, t.penCell())
		}
		if end > len(r.cells) {
			r.extend(t.x, t.cols)
			r.expose(end, t.cols)
		}
		cells := r.cells[t.x:end]
		meta := t.penMeta
		for i, b := range p[:len(cells)] {
			cells[i] = cell{ch: uint32(b), meta: meta}
		}
		t.x = end
		p = p[n:]
	}
}

// wrap moves to the start of the next row, because the text has reached the margin.
func (t *terminal) wrap() {
	t.touch(t.y).wrapped = true
	t.x = 0
	t.index()
}

// print prints one rune at the cursor.
func (t *terminal) print(r rune) {
	if r >= 0x80 && r < 0xa0 {
		return // 8-bit controls are neither executed nor shown
	}
	w := runeWidth(r)
	switch {
	case w == 0:
		t.join(r)
		return
	case r == lineSeparator || r == paragraphSeparator:
		r = ' ' // terminals start no new line here, and neither may text that a person sees
	}
	t.place(uint32(r), w)
}

// place puts a cluster of width w at the cursor and moves the cursor. ch is as in cell.
func (t *terminal) place(ch uint32, w int) {
	t.repeatable = true
	if t.x+w > t.cols {
		switch {
		case w > t.cols:
			return
		case t.modes.AutoWrap:
			if t.x < t.cols {
				// This blank is not a part of the text. It is not stored, so that it disappears
				// when the line is rewrapped.
				t.fill(t.y, t.x, t.cols, t.penCell())
			}
			t.wrap()
		default:
			t.x = t.cols - 1
			if w == 2 {
				return // no space
			}
		}
	}
	if t.modes.Insert {
		t.insertCells(t.y, t.x, w, t.penCell())
	}
	t.put(t.y, t.x, w, ch, t.penMeta)
	t.x += w
}

// before returns the column of the cluster left of the cursor, or -1 if there is none.
func (t *terminal) before() int {
	x := t.x - 1
	if x > 0 && t.g.rows[t.y].at(x).width() == 0 {
		x--
	}
	return x
}

// join adds r, a rune without a column, to the cluster left of the cursor. Two runes with columns
// are never joined, because programs count columns by rune, as wcwidth does.
func (t *terminal) join(r rune) {
	x := t.before()
	if x < 0 || invisible(r) {
		return
	}
	c := t.g.rows[t.y].at(x)
	text := utf8.AppendRune(t.intern.appendText(t.intern.buf[:0], c), r)
	t.intern.buf = text
	if len(text) <= maxCluster {
		t.put(t.y, x, c.width(), t.intern.cluster(text), c.meta)
	}
}

// repeat executes REP. It does not leave its line, so that a large number causes no more work than
// a line.
func (t *terminal) repeat(n int) {
	x := t.before()
	if !t.repeatable || x < 0 {
		return
	}
	c := t.g.rows[t.y].at(x)
	for range min(n, (t.cols-t.x)/max(c.width(), 1)) {
		t.place(c.ch, c.width())
	}
}
