package screen

import (
	"slices"
	"strings"
)

// What readers of a screen get of its cells. Rows are counted from 0, at the top.

// Size returns the number of columns and rows.
func (p *page) Size() (cols, rows int) { return p.cols, p.rows }

// Line returns row y of the active screen, with exactly one Cell for each column. The caller may
// keep it. Outside the screen, it returns nil.
func (p *page) Line(y int) []Cell {
	if y < 0 || y >= p.rows {
		return nil
	}
	return p.appendCells(nil, p.g.rows[y], p.cols)
}

// AppendLine appends row y to dst without trailing blanks. Outside the screen, it appends nothing.
func (p *page) AppendLine(dst []Cell, y int) []Cell {
	if y < 0 || y >= p.rows {
		return dst
	}
	return p.appendUsed(dst, p.g.rows[y], p.cols)
}

// appendUsed appends the cells of r without trailing blanks, at most cols.
func (p *page) appendUsed(dst []Cell, r *row, cols int) []Cell {
	if r.fill == blank {
		cols = min(cols, r.used())
	}
	return p.appendCells(dst, r, cols)
}

func (p *page) appendCells(dst []Cell, r *row, cols int) []Cell {
	n := min(len(r.cells), cols)
	dst = slices.Grow(dst, cols)
	out := dst[len(dst) : len(dst)+cols]
	for i, c := range r.cells[:n] {
		out[i] = p.intern.cell(c)
	}
	if n < cols {
		fill := p.intern.cell(r.fill)
		for i := n; i < cols; i++ {
			out[i] = fill
		}
	}
	return dst[:len(dst)+cols]
}

// LineGeneration returns a number that changes whenever the content of row y changes. A row that
// moves keeps its number, and no two rows of a screen have the same. So a reader can distinguish
// scrolled rows from rewritten ones.
func (p *page) LineGeneration(y int) uint64 {
	if y < 0 || y >= p.rows {
		return 0
	}
	return p.g.rows[y].gen
}

// Wrapped reports whether row y continues in the next row, because the text reached the margin.
func (p *page) Wrapped(y int) bool { return y >= 0 && y < p.rows && p.g.rows[y].wrapped }

// LineText returns the text of row y without trailing spaces.
func (p *page) LineText(y int) string {
	if y < 0 || y >= p.rows {
		return ""
	}
	return p.rowText(p.g.rows[y])
}

// Text returns the text of the screen: its lines without trailing spaces, joined by newlines,
// without trailing empty lines.
func (p *page) Text() string {
	var b strings.Builder
	empty := 0
	for y := range p.rows {
		line := p.LineText(y)
		if line == "" {
			empty++
			continue
		}
		if b.Len() == 0 {
			empty = y
		}
		for range empty {
			b.WriteByte('\n')
		}
		b.WriteString(line)
		empty = 1
	}
	return b.String()
}

// Blank reports whether the screen shows no character. Colors do not count.
func (p *page) Blank() bool {
	for _, r := range p.g.rows {
		if r.fill.ch != ' ' || slices.ContainsFunc(r.cells, func(c cell) bool {
			return c.ch != ' '
		}) {
			return false
		}
	}
	return true
}

func (p *page) rowText(r *row) string {
	n := len(r.cells)
	if r.fill.ch != ' ' {
		n = p.cols
	}
	b := make([]byte, 0, n)
	for x := range n {
		b = p.intern.appendText(b, r.at(x))
	}
	return strings.TrimRight(string(b), " ")
}

// Generation returns a number that changes whenever anything visible to a reader changes. It may
// also change without that.
func (p *page) Generation() uint64 { return p.generation }

// Scrolled returns how many lines have scrolled off the top of the primary screen so far.
func (p *page) Scrolled() uint64 { return p.history.total }

// Kept returns the number of the oldest kept line that scrolled off the primary screen, or Scrolled
// if none is kept.
func (p *page) Kept() uint64 { return p.history.total - uint64(len(p.history.ring)) }

// AppendKept appends line number n, from Kept to Scrolled-1, with its original width, without
// trailing blanks.
func (p *page) AppendKept(dst []Cell, n uint64) []Cell {
	r := p.history.line(n)
	return p.appendUsed(dst, r, max(len(r.cells), p.cols))
}
