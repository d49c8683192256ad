package screen

// row is one line of cells. It stores the cells up to the last one written. All others are fill. So
// erasing a line, or a whole screen with a background, does not depend on its width. No short
// sequence causes much work.
type row struct {
	cells   []cell
	fill    cell
	gen     uint64
	wrapped bool // the text continues in the next row
}

// grid is one of the two screens, each with its own margins and tab stops.
type grid struct {
	rows        []*row // topmost first
	top, bottom int    // scroll region, both inclusive
	tabs        [MaxCols/64 + 1]uint64
}

// reset sets the margins to the edges of the screen, and a tab stop at every eighth column.
func (g *grid) reset(cols, rows int) {
	g.top, g.bottom = 0, rows-1
	g.tabs = [len(g.tabs)]uint64{}
	for x := 0; x < cols; x += 8 {
		g.setTab(x, true)
	}
}

// moreTabs sets a tab stop at every eighth column after the last one, on a screen that now has cols
// columns.
func (g *grid) moreTabs(cols int) {
	x := cols
	for x > 0 && !g.tabAt(x) {
		x--
	}
	for ; x < cols; x += 8 {
		g.setTab(x, true)
	}
}

func newRows(n int) []*row {
	rows := make([]*row, n)
	all := make([]row, n)
	for i := range rows {
		all[i].fill = blank
		rows[i] = &all[i]
	}
	return rows
}

func (r *row) at(x int) cell {
	if x < len(r.cells) {
		return r.cells[x]
	}
	return r.fill
}

// extend stores at least the first n cells.
func (r *row) extend(n, cols int) {
	from := len(r.cells)
	r.expose(n, cols)
	for x := from; x < n; x++ {
		r.cells[x] = r.fill
	}
}

// expose is extend for callers that then write all new cells themselves.
func (r *row) expose(n, cols int) {
	if n <= len(r.cells) {
		return
	}
	if n > cap(r.cells) {
		grown := make([]cell, len(r.cells), min(max(n, 2*cap(r.cells), 16), max(cols, n)))
		copy(grown, r.cells)
		r.cells = grown
	}
	r.cells = r.cells[:n]
}

func (r *row) clear(fill cell) {
	r.cells = r.cells[:0]
	r.fill = fill
	r.wrapped = false
}

// used returns the number of cells without trailing blanks.
func (r *row) used() int {
	n := len(r.cells)
	for n > 0 && r.cells[n-1] == blank {
		n--
	}
	return n
}

func (r *row) empty() bool { return r.used() == 0 && r.fill == blank }

// touch marks row y as changed.
func (s *Screen) touch(y int) *row {
	s.generation++
	r := s.g.rows[y]
	r.gen = s.generation
	return r
}

// splitAt ensures that no wide cluster spans columns x-1 and x. It replaces both halves of such a
// cluster by the blank with, because one half is about to be overwritten. Inlining it would add a
// third of a kilobyte to the guest, which must stay small.
//
//go:noinline
func (r *row) splitAt(x int, with cell) {
	if x <= 0 || x >= len(r.cells) || r.cells[x].width() != 0 {
		return
	}
	r.cells[x-1], r.cells[x] = with, with
}

// erase blanks the columns from a to b-1 of row y.
func (s *Screen) erase(y, a, b int) { s.fill(y, a, b, s.eraseCell) }

// fill sets the columns from a to b-1 of row y to the blank with.
func (s *Screen) fill(y, a, b int, with cell) {
	a, b = max(a, 0), min(b, s.cols)
	if a >= b {
		return
	}
	r := s.touch(y)
	r.splitAt(a, with)
	r.splitAt(b, with)
	if b == s.cols {
		if a > len(r.cells) && r.fill != with {
			r.extend(a, s.cols)
		}
		r.cells = r.cells[:min(a, len(r.cells))]
		if a == len(r.cells) {
			r.fill = with
		}
		r.wrapped = false
		return
	}
	r.extend(b, s.cols)
	for x := a; x < b; x++ {
		r.cells[x] = with
	}
}

// eraseRows blanks the rows from a to b-1.
func (s *Screen) eraseRows(a, b int) {
	for y := a; y < b; y++ {
		s.touch(y).clear(s.eraseCell)
	}
}

// scrolling returns the rows of the active screen, which are about to move. It drops the rows that
// were cut off below, because they no longer follow.
func (s *Screen) scrolling() []*row {
	if s.g == &s.primary {
		s.below = nil
	}
	return s.g.rows
}

// retire moves a row of the primary screen to the history, and returns a row to reuse.
func (s *Screen) retire(r *row) *row {
	if r.fill.ch != ' ' {
		r.extend(s.cols, s.cols)
	}
	return s.history.push(r)
}

// scrollUp moves the rows from top to bottom up by n, and adds blank rows at the bottom. If keep is
// set, rows that leave the top of the primary screen go to the history.
func (s *Screen) scrollUp(top, bottom, n int, keep bool) {
	n = min(n, bottom-top+1)
	if n <= 0 {
		return
	}
	rows := s.scrolling()
	out := append(s.scratch[:0], rows[top:top+n]...)
	s.scratch = out
	copy(rows[top:bottom+1], rows[top+n:bottom+1])
	if keep && top == 0 && s.g == &s.primary {
		for i, r := range out {
			out[i] = s.retire(r)
		}
	}
	for i, r := range out {
		rows[bottom+1-n+i] = r
		s.touch(bottom + 1 - n + i).clear(s.eraseCell)
	}
	s.brokenBelow(top - 1)
}

// scrollLine is scrollUp by one for the whole region. It is fast, because every line feed on the
// last row needs it.
func (s *Screen) scrollLine() {
	rows, top, bottom := s.scrolling(), s.g.top, s.g.bottom
	r := rows[top]
	copy(rows[top:bottom], rows[top+1:bottom+1])
	if top == 0 && s.g == &s.primary {
		r = s.retire(r)
	} else {
		s.brokenBelow(top - 1)
	}
	rows[bottom] = r
	s.touch(bottom).clear(s.eraseCell)
}

// scrollDown moves the rows from top to bottom down by n, and adds rows of fill at the top.
func (s *Screen) scrollDown(top, bottom, n int, fill cell) {
	n = min(n, bottom-top+1)
	if n <= 0 {
		return
	}
	rows := s.scrolling()
	out := append(s.scratch[:0], rows[bottom+1-n:bottom+1]...)
	s.scratch = out
	copy(rows[top+n:bottom+1], rows[top:bottom+1-n])
	for i, r := range out {
		rows[top+i] = r
		s.touch(top + i).clear(fill)
	}
	s.brokenBelow(top - 1)
	s.brokenBelow(bottom)
}

// brokenBelow records that the row after y is no longer the rest of its line.
func (s *Screen) brokenBelow(y int) {
	if y >= 0 {
		s.g.rows[y].wrapped = false
	}
}

// insertCells moves the cells from x on to the right by n. Cells beyond the margin are lost.
func (s *Screen) insertCells(y, x, n int, with cell) {
	if x >= s.cols || n <= 0 {
		return
	}
	n = min(n, s.cols-x)
	r := s.touch(y)
	r.splitAt(x, with)
	if r.fill == with && x >= len(r.cells) {
		return
	}
	if r.fill == blank {
		r.extend(min(max(len(r.cells), x)+n, s.cols), s.cols)
	} else {
		r.extend(s.cols, s.cols)
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
func (s *Screen) deleteCells(y, x, n int) {
	if x >= s.cols || n <= 0 {
		return
	}
	n = min(n, s.cols-x)
	r := s.touch(y)
	if r.fill != s.eraseCell {
		r.extend(s.cols, s.cols)
	}
	r.splitAt(x, s.eraseCell)
	r.splitAt(x+n, s.eraseCell)
	if x < len(r.cells) {
		r.cells = append(r.cells[:x], r.cells[min(x+n, len(r.cells)):]...)
	}
	r.fill = s.eraseCell
	r.wrapped = false
}

// history has the lines that scrolled off the primary screen. When full, it is a ring.
type history struct {
	limit int
	ring  []*row
	next  int // index for the next line once the ring is full
	total uint64
}

// push stores r and returns a row to reuse.
func (h *history) push(r *row) *row {
	h.total++
	switch {
	case h.limit == 0:
		return r
	case len(h.ring) < h.limit:
		h.ring = append(h.ring, r)
		return &row{fill: blank}
	default:
		old := h.ring[h.next]
		h.ring[h.next] = r
		h.next = (h.next + 1) % h.limit
		return old
	}
}

// line returns line number n, which must be stored.
func (h *history) line(n uint64) *row {
	oldest := h.total - uint64(len(h.ring))
	return h.ring[(h.next+int(n-oldest))%len(h.ring)]
}

func (h *history) clear() {
	h.ring, h.next = nil, 0
}
