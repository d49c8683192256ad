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

func (g *grid) tabAt(x int) bool { return g.tabs[x/64]&(1<<(x%64)) != 0 }

func (g *grid) setTab(x int, on bool) {
	if on {
		g.tabs[x/64] |= 1 << (x % 64)
	} else {
		g.tabs[x/64] &^= 1 << (x % 64)
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
