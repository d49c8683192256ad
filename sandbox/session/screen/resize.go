package screen

// Resize changes the size, clamped to 1..MaxCols by 1..MaxRows.
//
// On the primary screen, wrapped lines are rewrapped. If rows no longer fit, those below the cursor
// are set aside. They come back if the screen grows before it has scrolled. Then rows at the top go
// to the history, and do not come back. The alternate screen is cut or padded, because its program
// redraws it.
func (t *terminal) Resize(cols, rows int) {
	cols, rows = clampSize(cols, rows)
	if cols == t.cols && rows == t.rows {
		return
	}
	oldCols := t.cols
	active := t.g

	// While the alternate screen is active, the primary screen's cursor is the saved one.
	x, y := t.x, t.y
	saved := &t.saved[0]
	alt := t.modes.AltScreen
	if alt {
		x, y = saved.x, saved.y
	}
	y = min(max(y, 0), len(t.primary.rows)-1)
	if cols != oldCols {
		t.primary.rows = append(t.primary.rows, t.below...)
		t.below = nil
		x, y = t.reflow(oldCols, cols, x, y)
	}
	y = t.fitPrimary(rows, y)
	if alt {
		saved.x, saved.y = x, y
	} else {
		saved.x, saved.y = min(saved.x, cols), min(saved.y, rows-1)
	}
	if t.alternate.rows != nil {
		t.fitAlternate(oldCols, cols, rows)
	}
	if alt {
		x, y = min(t.x, cols-1), min(t.y, rows-1)
	}
	t.cols, t.rows, t.g = cols, rows, active
	t.x, t.y = x, y
	t.primary.top, t.primary.bottom = 0, rows-1
	t.alternate.top, t.alternate.bottom = 0, rows-1
	t.primary.moreTabs(cols)
	t.alternate.moreTabs(cols)
	for y := range rows {
		t.touch(y)
	}
	t.interrupted()
}

// reflow rewraps the lines of the primary screen for another width, and returns the new position of
// the cursor. The number of rows may change.
func (p *page) reflow(oldCols, cols, x, y int) (int, int) {
	old := p.primary.rows
	used := len(old)
	for used > y+1 && old[used-1].empty() {
		used--
	}
	var out []*row
	newX, newY := 0, 0
	for i := 0; i < used; {
		var line []cell
		cursor := -1 // offset of the cursor in the line
		fill := blank
		for more := true; more && i < used; i++ {
			r := old[i]
			more = r.wrapped
			n := r.used()
			if r.fill.ch != ' ' {
				r.extend(oldCols, oldCols)
				r.fill = blank
				n = oldCols
			}
			if more && i+1 < used {
				n = len(r.cells)
			}
			if i == y {
				cursor = len(line) + x
			}
			line = append(line, r.cells[:n]...)
			fill = r.fill
		}
		first := len(out)
		starts := layout(&out, line, cols, fill)
		if cursor >= 0 {
			newX, newY = locate(starts, len(line), cursor, cols)
			newY += first
		}
	}
	p.primary.rows = out
	return newX, newY
}

// layout appends the rows of a line for a width. It returns the offset in the line at which each
// row starts.
func layout(out *[]*row, line []cell, cols int, fill cell) []int {
	starts := []int{0}
	start := 0
	for {
		end := min(start+cols, len(line))
		if end < len(line) && line[end].width() == 0 && cols > 1 {
			end-- // do not split a wide cluster
		}
		r := &row{cells: append([]cell(nil), line[start:end]...), fill: blank,
			wrapped: end < len(line)}
		if cols == 1 {
			for i, c := range r.cells {
				if c.width() != 1 {
					r.cells[i] = blank // a wide cluster does not fit
				}
			}
		}
		*out = append(*out, r)
		if end == len(line) {
			r.fill = fill
			return starts
		}
		start = end
		starts = append(starts, start)
	}
}

// locate returns the position of offset cursor in a line of length n, whose rows begin at starts.
func locate(starts []int, n, cursor, cols int) (x, y int) {
	y = len(starts) - 1
	for y > 0 && starts[y] > cursor {
		y--
	}
	x = cursor - starts[y]
	if x > cols || x == cols && cursor > n {
		x = cols - 1
	}
	return x, y
}

// fitPrimary sets the height of the primary screen to rows, and returns the new row of the cursor.
func (p *page) fitPrimary(rows, y int) int {
	g := &p.primary
	for len(g.rows) > rows && len(g.rows) > y+1 && g.rows[len(g.rows)-1].empty() {
		g.rows = g.rows[:len(g.rows)-1]
	}
	// Rows below the cursor are set aside first: tmux deletes these first.
	if n := min(len(g.rows)-rows, len(g.rows)-1-y); n > 0 {
		cut := len(g.rows) - n
		p.below = append(append([]*row(nil), g.rows[cut:]...), p.below...)
		p.below = p.below[:min(len(p.below), MaxRows)]
		g.rows = g.rows[:cut]
	}
	for len(g.rows) > rows {
		p.retire(g.rows[0])
		g.rows = g.rows[1:]
		y--
	}
	for len(g.rows) < rows && len(p.below) > 0 {
		g.rows = append(g.rows, p.below[0])
		p.below = p.below[1:]
	}
	g.rows = append(append(make([]*row, 0, rows), g.rows...), newRows(rows-len(g.rows))...)
	return y
}

// fitAlternate cuts or pads the alternate screen. It removes rows below the cursor first, then rows
// at the top.
func (t *terminal) fitAlternate(oldCols, cols, rows int) {
	g := &t.alternate
	g.rows = g.rows[:min(len(g.rows), max(rows, t.y+1))]
	gone := max(len(g.rows)-rows, 0)
	g.rows = g.rows[gone:]
	t.saved[1].y = max(t.saved[1].y-gone, 0)
	for _, r := range g.rows {
		if r.fill != blank {
			r.extend(oldCols, oldCols)
			r.fill = blank
		}
		if len(r.cells) > cols {
			r.splitAt(cols, cell{ch: ' ', meta: r.cells[cols].meta | 1})
			r.cells = append([]cell(nil), r.cells[:cols]...)
		}
		r.wrapped = false
	}
	g.rows = append(append(make([]*row, 0, rows), g.rows...), newRows(rows-len(g.rows))...)
}
