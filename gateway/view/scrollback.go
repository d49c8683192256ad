package view

import (
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

const (
	maxLines = 1000      // for the scrollback in one frame; a notice replaces earlier ones
	maxFrame = 256 << 10 // bytes of a frame after which a notice replaces the rest of its lines
)

// sent are the lines of a screen that the terminal's scrollback has. Lines are numbered: first all
// that scrolled off the screen, then those on the screen.
type sent struct {
	of *screen.Screen
	up uint64 // lines with smaller numbers are in the scrollback
	// Generations of those of them that were still on the screen, as they were sent; the last one
	// is that of up-1.
	above []uint64
	anew  bool // of is unknown, and none of its lines is missing
}

// send scrolls the lines that leave the window at its top into the scrollback. With hold, many
// lines wait.
func (r *Renderer) send(s *screen.Screen, hold bool) {
	l := &r.lines
	scrolled := s.Scrolled()
	to := scrolled + uint64(r.y0)
	lost := false // an unknown number of lines
	if l.of != s {
		lost = l.of != nil
		anew := l.anew
		*l = sent{of: s, up: scrolled}
		switch {
		case anew:
			l.took(s, scrolled, to)
		case !lost: // the first screen
			most := min(to, uint64(min(max(r.History, 0), maxLines)))
			l.up = min(scrolled, max(s.Kept(), to-most))
		}
	}
	_, rows := r.Area()
	if rows < 2 {
		*l = sent{of: s, up: scrolled}
		return
	}
	// Lines that have left the screen since can no longer change.
	if base := l.up - uint64(len(l.above)); base < scrolled {
		l.above = l.above[min(scrolled-base, uint64(len(l.above))):]
	}
	from := l.up
	for i, gen := range l.above {
		if n := scrolled + uint64(i); n < to && gen != s.LineGeneration(i) {
			from = n
			break
		}
	}
	if hold && !lost && from < to && to-from > uint64(rows) {
		// A line that changed after it was sent is sent again, even if it has left the screen by
		// then.
		l.above = l.above[:uint64(len(l.above))-(l.up-from)]
		l.up = from
		r.held = true
		return
	}
	if from < to || lost {
		r.pushed += to - min(from, to)
		r.push(s, from, to, lost)
		l.took(s, from, to)
	}
}

// took records that the scrollback has the lines of s from number from up to number to.
func (l *sent) took(s *screen.Screen, from, to uint64) {
	scrolled := s.Scrolled()
	for n := max(from, scrolled); n < to; n++ {
		i := int(n - scrolled)
		if i == len(l.above) {
			l.above = append(l.above, 0)
		}
		l.above[i] = s.LineGeneration(i)
	}
	l.up = max(l.up, to)
}

// push draws lines at the top of the window and scrolls them out of it, as many at a time as the
// window has rows. It does not redraw lines that the window already shows.
func (r *Renderer) push(s *screen.Screen, from, to uint64, lost bool) {
	_, rows := r.Area()
	still := 0 // rows at the bottom that do not move, as below the scroll region of a program
	for y := rows - 1; y >= 2 && r.shows(y, s, y+r.y0); y-- {
		still++
	}
	height := rows - still
	if still > 0 {
		r.region(still)
	}
	var skip uint64
	if kept := s.Kept(); kept > from {
		skip = kept - from
	}
	if n := to - min(from, to); n > maxLines {
		skip = max(skip, n-maxLines)
	}
	for y := 0; from < to || lost; {
		switch {
		case lost:
			r.drawRow(y, r.notice("[lines not shown]"))
			lost = false
		case skip > 0:
			r.drawRow(y, r.notice("["+strconv.FormatUint(skip, 10)+" lines not shown]"))
			from, skip = from+skip, 0
		default:
			r.drawRow(y, r.clip(r.numbered(s, from)))
			from++
		}
		if y++; y == height || from >= to {
			r.roll(y, height)
			y = 0
		}
		if len(r.out) > maxFrame {
			skip = to - min(from, to)
		}
	}
	if still > 0 {
		r.region(0)
	}
}

// numbered returns line number n of s.
func (r *Renderer) numbered(s *screen.Screen, n uint64) []screen.Cell {
	if scrolled := s.Scrolled(); n >= scrolled {
		r.line = s.AppendLine(r.line[:0], int(n-scrolled))
	} else {
		r.line = s.AppendKept(r.line[:0], n)
	}
	return r.line
}

// notice returns a line with our own text, in the style of the status line.
func (r *Renderer) notice(text string) []screen.Cell {
	line, _ := statusLine(text, r.cols)
	for len(line) > 0 && line[len(line)-1].Text == " " {
		line = line[:len(line)-1]
	}
	return line
}

// roll scrolls the first height rows up by n, out of the window.
func (r *Renderer) roll(n, height int) {
	r.setPen(screen.Style{})
	if r.y != height-1 {
		r.moveTo(height-1, 0)
	}
	r.lineFeeds(n)
	r.shift(0, height-1, n)
}

// scroll moves rows that the terminal already shows to their new places. Lines keep their
// generation when they move. None of them gets into the scrollback.
func (r *Renderer) scroll(s *screen.Screen, rows int) {
	clear(r.rowOf)
	changed := 0
	for y := range rows {
		g := r.shown[y].gen
		if g != 0 {
			r.rowOf[g] = y
		}
		if g != s.LineGeneration(y+r.y0) {
			changed++
		}
	}
	if changed < 2 || len(r.rowOf) == 0 {
		return
	}
	// The longest run of rows that moved by the same distance.
	var first, last, by int
	for y := 0; y < rows; {
		old, ok := r.rowOf[s.LineGeneration(y+r.y0)]
		if !ok || old == y {
			y++
			continue
		}
		end := y + 1
		for end < rows && old+end-y < rows && r.shows(old+end-y, s, end+r.y0) {
			end++
		}
		if end-y > last-first {
			first, last, by = y, end, old-y
		}
		y = end
	}
	top, bottom, final := first, last-1+by, byte('M')
	if by < 0 {
		top, bottom, final = first+by, last-1, 'L'
	}
	if final == 'M' && top == 0 && r.place == onMain {
		top = 1 // some terminals put rows that are deleted at the top into the scrollback
	}
	gain := 0
	for y := top; y <= bottom && last > first; y++ {
		if r.shows(y, s, y+r.y0) {
			gain--
		}
		if from := y + by; from >= top && from <= bottom && r.shows(from, s, y+r.y0) {
			gain++
		}
	}
	if gain <= 0 || top == bottom {
		return
	}
	r.setPen(screen.Style{})
	r.sequence(top+1, bottom+1, 'r')
	r.x, r.y = 0, 0
	r.moveTo(top, 0)
	r.sequence(max(by, -by), 0, final)
	r.region(0)
	r.shift(top, bottom, by)
}

// shows reports whether row y of the window shows line of s in its current form.
func (r *Renderer) shows(y int, s *screen.Screen, line int) bool {
	g := r.shown[y].gen
	return g != 0 && g == s.LineGeneration(line)
}

// shift moves the known rows from top to bottom up by n, or down if n is negative.
func (r *Renderer) shift(top, bottom, n int) {
	rows := append(r.moved[:0], r.shown[top:bottom+1]...)
	r.moved = rows
	size := bottom - top + 1
	for i := range size {
		from := ((i+n)%size + size) % size
		r.shown[top+i] = rows[from]
		if i+n < 0 || i+n >= size {
			r.shown[top+i].known = true
			r.shown[top+i].keys = rows[from].keys[:0]
			r.shown[top+i].gen = 0
		}
	}
	clear(rows)
}
