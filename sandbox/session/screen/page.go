package screen

// page is the cells: those of both screens, and the lines that have scrolled off the primary one.
// It knows the style in which cells are written, but neither a cursor nor modes.
type page struct {
	cols, rows int

	intern    interner
	primary   grid
	alternate grid   // allocated at its first use
	g         *grid  // the active one
	below     []*row // rows cut off at the bottom by a smaller size, topmost first
	history   history
	scratch   []*row // for rotating rows without an allocation

	pen       Style  // style of printed text
	penMeta   uint32 // of pen, with width 1
	eraseCell cell   // a blank with the pen's background, for erasing

	generation uint64
}

func clampSize(cols, rows int) (int, int) {
	return min(max(cols, 1), MaxCols), min(max(rows, 1), MaxRows)
}

func (p *page) setPen(st Style) {
	p.pen = st
	p.penMeta = p.intern.style(st)<<2 | 1
	p.eraseCell = blank
	if st.Bg != 0 {
		p.eraseCell.meta = p.intern.style(Style{Bg: st.Bg})<<2 | 1
	}
}

// penCell returns a blank in the pen's style. It replaces one half of a wide character when the
// other half is overwritten.
func (p *page) penCell() cell { return cell{ch: ' ', meta: p.penMeta} }

// touch marks row y as changed.
func (p *page) touch(y int) *row {
	p.generation++
	r := p.g.rows[y]
	r.gen = p.generation
	return r
}

// put writes a cluster of width w at column x of row y, with the style of meta.
func (p *page) put(y, x, w int, ch, meta uint32) {
	r := p.touch(y)
	r.splitAt(x+w, p.penCell())
	r.splitAt(x, p.penCell())
	r.extend(x+w, p.cols)
	r.cells[x] = cell{ch: ch, meta: meta&^3 | uint32(w)}
	if w == 2 {
		r.cells[x+1] = continuation(meta)
	}
}

// erase blanks the columns from a to b-1 of row y.
func (p *page) erase(y, a, b int) { p.fill(y, a, b, p.eraseCell) }

// fill sets the columns from a to b-1 of row y to the blank with.
func (p *page) fill(y, a, b int, with cell) {
	a, b = max(a, 0), min(b, p.cols)
	if a >= b {
		return
	}
	r := p.touch(y)
	r.splitAt(a, with)
	r.splitAt(b, with)
	if b == p.cols {
		if a > len(r.cells) && r.fill != with {
			r.extend(a, p.cols)
		}
		r.cells = r.cells[:min(a, len(r.cells))]
		if a == len(r.cells) {
			r.fill = with
		}
		r.wrapped = false
		return
	}
	r.extend(b, p.cols)
	for x := a; x < b; x++ {
		r.cells[x] = with
	}
}

// eraseRows blanks the rows from a to b-1.
func (p *page) eraseRows(a, b int) {
	for y := a; y < b; y++ {
		p.touch(y).clear(p.eraseCell)
	}
}

// scrolling returns the rows of the active screen, which are about to move. It drops the rows that
// were cut off below, because they no longer follow.
func (p *page) scrolling() []*row {
	if p.g == &p.primary {
		p.below = nil
	}
	return p.g.rows
}

// retire moves a row of the primary screen to the history, and returns a row to reuse.
func (p *page) retire(r *row) *row {
	if r.fill.ch != ' ' {
		r.extend(p.cols, p.cols)
	}
	return p.history.push(r)
}

// scrollUp moves the rows from top to bottom up by n, and adds blank rows at the bottom. If keep is
// set, rows that leave the top of the primary screen go to the history.
func (p *page) scrollUp(top, bottom, n int, keep bool) {
	n = min(n, bottom-top+1)
	if n <= 0 {
		return
	}
	rows := p.scrolling()
	out := append(p.scratch[:0], rows[top:top+n]...)
	p.scratch = out
	copy(rows[top:bottom+1], rows[top+n:bottom+1])
	if keep && top == 0 && p.g == &p.primary {
		for i, r := range out {
			out[i] = p.retire(r)
		}
	}
	for i, r := range out {
		rows[bottom+1-n+i] = r
		p.touch(bottom + 1 - n + i).clear(p.eraseCell)
	}
	p.brokenBelow(top - 1)
}

// scrollLine is scrollUp by one for the whole region. It is fast, because every line feed on the
// last row needs it.
func (p *page) scrollLine() {
	rows, top, bottom := p.scrolling(), p.g.top, p.g.bottom
	r := rows[top]
	copy(rows[top:bottom], rows[top+1:bottom+1])
	if top == 0 && p.g == &p.primary {
		r = p.retire(r)
	} else {
		p.brokenBelow(top - 1)
	}
	rows[bottom] = r
	p.touch(bottom).clear(p.eraseCell)
}

// scrollDown moves the rows from top to bottom down by n, and adds rows of fill at the top.
func (p *page) scrollDown(top, bottom, n int, fill cell) {
	n = min(n, bottom-top+1)
	if n <= 0 {
		return
	}
	rows := p.scrolling()
	out := append(p.scratch[:0], rows[bottom+1-n:bottom+1]...)
	p.scratch = out
	copy(rows[top+n:bottom+1], rows[top:bottom+1-n])
	for i, r := range out {
		rows[top+i] = r
		p.touch(top + i).clear(fill)
	}
	p.brokenBelow(top - 1)
	p.brokenBelow(bottom)
}

// brokenBelow records that the row after y is no longer the rest of its line.
func (p *page) brokenBelow(y int) {
	if y >= 0 {
		p.g.rows[y].wrapped = false
	}
}

// insertCells moves the cells from x on to the right by n. Cells beyond the margin are lost.
func (p *page) insertCells(y, x, n int, with cell) {
	if x >= p.cols || n <= 0 {
		return
	}
	n = min(n, p.cols-x)
	r := p.touch(y)
	r.splitAt(x, with)
	if r.fill == with && x >= len(r.cells) {
		return
	}
	if r.fill == blank {
		r.extend(min(max(len(r.cells), x)+n, p.cols), p.cols)
	} else {
		r.extend(p.cols, p.cols)
	}
	end := len(r.cells)
	r.splitAt(end-n, with)
	copy(r.cells[x+n:end], r.cells[x:end-n])
	for i := x; i < x+n; i++ {
		r.cells[i] = with
	}
	r.wrapped = false
}

// deleteCells removes n cells at x, and adds blanks at the margin.
func (p *page) deleteCells(y, x, n int) {
	if x >= p.cols || n <= 0 {
		return
	}
	n = min(n, p.cols-x)
	r := p.touch(y)
	if r.fill != p.eraseCell {
		r.extend(p.cols, p.cols)
	}
	r.splitAt(x, p.eraseCell)
	r.splitAt(x+n, p.eraseCell)
	if x < len(r.cells) {
		r.cells = append(r.cells[:x], r.cells[min(x+n, len(r.cells)):]...)
	}
	r.fill = p.eraseCell
	r.wrapped = false
}

// collect drops styles and clusters that no cell of this screen uses.
func (p *page) collect() {
	old := p.intern
	p.intern = newInterner()
	cells := 0
	move := func(r *row) {
		cells += len(r.cells)
		for i, c := range r.cells {
			r.cells[i] = p.intern.move(&old, c)
		}
		r.fill = p.intern.move(&old, r.fill)
	}
	for _, g := range []*grid{&p.primary, &p.alternate} {
		for _, r := range g.rows {
			move(r)
		}
	}
	for _, r := range p.below {
		move(r)
	}
	for _, r := range p.history.ring {
		move(r)
	}
	p.setPen(p.pen)
	// Cells count too: collecting with many kept lines must be rare for any output.
	p.intern.limit = max(minInterned, 2*(len(p.intern.styles)+len(p.intern.clusters)), cells/32)
}
