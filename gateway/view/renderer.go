// Package view is a person's side of a shared session: it draws a screen model on their terminal with a status line below it, and
// takes their keys apart into input for the program and commands of the escape chord.
//
// Nothing that a program prints reaches a person's terminal as it is. What comes out of a Renderer is a closed list: printable
// UTF-8, SGR, cursor movement and shape, erasing, scrolling in a region, and – for the person who drives – the input modes
// that the program asked for. It knows nothing of sessions, SSH or HTTP.
package view

import (
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// Frame is what a person should see.
type Frame struct {
	// Screen is the program's screen; it is read during Draw only, under the caller's lock. Nil shows nothing.
	Screen *screen.Screen
	// Status is plain text for the bottom row of the person's window. Control and invisible characters in it are dropped.
	Status string
	// Brief are shorter forms of Status for windows in which it does not fit, the longest first. The last one is cut where that
	// does not fit either.
	Brief []string
	// Driver says that the person holds the keyboard: their terminal gets the input modes that the program switched on.
	Driver bool
}

// Renderer keeps what one person's terminal shows and writes what is missing. It draws on the terminal's alternate screen, so that
// leaving brings back what was there before. It is not safe for concurrent use.
//
// The bottom row of the window is the status line; the program has the rows above, clipped to the window when its screen is larger, in
// which case the window follows the cursor. A window of one row has no status line.
type Renderer struct {
	cols, rows int
	entered    bool
	redraw     bool // nothing is known of the window

	shown  [][]screen.Cell // the rows of the window without trailing blanks, the status line last
	gens   []uint64        // the generation of the screen's line that is shown at a row, 0 for none
	source *screen.Screen
	x0, y0 int      // the cell of the source in the window's top left corner
	status []string // in all its forms

	pen     screen.Style
	x, y    int // where the terminal's cursor is; x is -1 where we do not know
	visible bool
	shape   screen.CursorStyle
	modes   screen.Modes // the input modes that are on

	out   []byte
	line  []screen.Cell
	rowOf map[uint64]int
}

// NewRenderer returns a Renderer for a window of a size, clamped to 1..screen.MaxCols by 1..screen.MaxRows.
func NewRenderer(cols, rows int) *Renderer {
	r := &Renderer{rowOf: make(map[uint64]int)}
	r.Resize(cols, rows)
	return r
}

// Enter returns what prepares the person's terminal. The next Draw draws everything.
func (r *Renderer) Enter() []byte {
	if r.entered {
		return nil
	}
	r.entered, r.redraw = true, true
	r.visible, r.shape, r.modes = true, 0, screen.Modes{}
	// Without wrapping, a character that the terminal takes for wider than we do never gets into the next row – the lowest is ours.
	return []byte("\x1b[?1049h\x1b[?7l\x1b[?25h")
}

// Leave returns what gives the person's terminal back as it was: modes, colours, cursor, scroll region and content. A Renderer may be
// entered again.
func (r *Renderer) Leave() []byte {
	if !r.entered {
		return nil
	}
	r.entered = false
	r.out = r.out[:0]
	r.setModes(screen.Modes{})
	if r.shape != 0 {
		r.setShape(0)
	}
	r.out = append(r.out, "\x1b[m\x1b[r\x1b[?25h\x1b[?7h\x1b[?1049l"...)
	return append([]byte(nil), r.out...)
}

// Resize changes the size of the window. The next Draw draws everything.
func (r *Renderer) Resize(cols, rows int) {
	r.cols = min(max(cols, 1), screen.MaxCols)
	r.rows = min(max(rows, 1), screen.MaxRows)
	r.shown = make([][]screen.Cell, r.rows)
	r.gens = make([]uint64, r.rows)
	r.redraw = true
}

// Area is the part of the window that shows the program: the size for a terminal whose driver has this window.
func (r *Renderer) Area() (cols, rows int) {
	if r.rows == 1 {
		return r.cols, 1
	}
	return r.cols, r.rows - 1
}

// Clipped reports whether s is larger than what the window shows of it.
func (r *Renderer) Clipped(s *screen.Screen) bool {
	sc, sr := s.Size()
	cols, rows := r.Area()
	return sc > cols || sr > rows
}

// Offset is the cell of the program's screen that the last Draw put in the top left corner of the window: 0, 0 unless it is clipped.
func (r *Renderer) Offset() (x, y int) { return r.x0, r.y0 }

// Draw returns the bytes that make the person's terminal show f, empty when it does already or before Enter. They must reach the
// terminal whole and in order. They are valid until the next call.
func (r *Renderer) Draw(f Frame) []byte {
	r.out = r.out[:0]
	if !r.entered {
		return nil
	}
	if r.redraw {
		r.clear()
	}
	_, rows := r.Area()
	if f.Screen != nil {
		r.follow(f.Screen)
		r.scroll(f.Screen, rows)
	} else if r.source != nil {
		r.source = nil
		clear(r.gens)
	}
	sourceRows := 0
	if f.Screen != nil {
		_, sourceRows = f.Screen.Size()
	}
	for y := range rows {
		switch from := y + r.y0; {
		case from >= sourceRows:
			r.drawRow(y, nil)
			r.gens[y] = 0
		case f.Screen.LineGeneration(from) != r.gens[y]:
			r.drawRow(y, r.clip(f.Screen, from))
			r.gens[y] = f.Screen.LineGeneration(from)
		}
	}
	if r.rows > 1 {
		r.drawStatus(f.Status, f.Brief)
	}
	r.drawCursor(f.Screen)
	var modes screen.Modes
	if f.Driver && f.Screen != nil {
		modes = f.Screen.Modes()
	}
	r.setModes(modes)
	r.redraw = false
	return r.out
}

// clear erases the window, of which nothing is known.
func (r *Renderer) clear() {
	r.out = append(r.out, "\x1b[r\x1b[m\x1b[H\x1b[2J"...)
	r.pen, r.x, r.y = screen.Style{}, 0, 0
	for y := range r.shown {
		r.shown[y] = r.shown[y][:0]
	}
	clear(r.gens)
	r.status = nil
}

// follow chooses the part of s that the window shows: the same as before while the cursor is in it.
func (r *Renderer) follow(s *screen.Screen) {
	cols, rows := r.Area()
	sc, sr := s.Size()
	cur := s.Cursor()
	x0 := within(r.x0, cur.X, cols, sc, cols/2)
	y0 := within(r.y0, cur.Y, rows, sr, 0)
	if s != r.source || x0 != r.x0 {
		clear(r.gens)
	}
	r.source, r.x0, r.y0 = s, x0, y0
}

// within moves the window of length n over a line of length total, starting at from, so that pos is in it. Where it must move it leaves
// margin beyond pos, so that it need not move again with the next character.
func within(from, pos, n, total, margin int) int {
	switch {
	case pos < from:
		from = pos - margin
	case pos >= from+n:
		from = pos - n + 1 + margin
	}
	return max(min(from, total-n), 0)
}

// clip returns line y of s as the window shows it, without trailing blanks.
func (r *Renderer) clip(s *screen.Screen, y int) []screen.Cell {
	r.line = s.AppendLine(r.line[:0], y)
	line := r.line[min(r.x0, len(r.line)):]
	line = line[:min(r.cols, len(line))]
	// Half of a wide character is a blank.
	if len(line) > 0 {
		if first := &line[0]; first.Width == 0 {
			*first = screen.Cell{Text: " ", Style: first.Style, Width: 1}
		}
		if last := &line[len(line)-1]; last.Width == 2 {
			*last = screen.Cell{Text: " ", Style: last.Style, Width: 1}
		}
	}
	for len(line) > 0 && line[len(line)-1].Blank() {
		line = line[:len(line)-1]
	}
	return line
}

// scroll moves rows that the terminal shows already to where they are now. Lines keep their generation when they move.
func (r *Renderer) scroll(s *screen.Screen, rows int) {
	clear(r.rowOf)
	changed := 0
	for y, g := range r.gens[:rows] {
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
	top, bottom, final := first, last-1+by, byte('S')
	if by < 0 {
		top, bottom, final = first+by, last-1, 'T'
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
	if gain <= 0 {
		return
	}
	r.setPen(screen.Style{})
	r.sequence(top+1, bottom+1, 'r')
	r.sequence(max(by, -by), 0, final)
	r.out = append(r.out, "\x1b[r"...)
	r.x, r.y = 0, 0
	r.shift(top, bottom, by)
}

// shows reports whether row y of the window shows line of s as it is.
func (r *Renderer) shows(y int, s *screen.Screen, line int) bool {
	g := r.gens[y]
	return g != 0 && g == s.LineGeneration(line)
}

// shift moves what is known of the rows from top to bottom up by n, down when it is negative.
func (r *Renderer) shift(top, bottom, n int) {
	shown := append([][]screen.Cell(nil), r.shown[top:bottom+1]...)
	gens := append([]uint64(nil), r.gens[top:bottom+1]...)
	size := bottom - top + 1
	for i := range size {
		from := ((i+n)%size + size) % size
		r.shown[top+i], r.gens[top+i] = shown[from], gens[from]
		if i+n < 0 || i+n >= size {
			r.shown[top+i], r.gens[top+i] = r.shown[top+i][:0], 0
		}
	}
}

// drawCursor puts the cursor where the program has it, or hides it.
func (r *Renderer) drawCursor(s *screen.Screen) {
	visible := false
	if s != nil {
		cur := s.Cursor()
		visible = cur.Visible
		if visible {
			r.moveTo(cur.Y-r.y0, cur.X-r.x0)
		}
		if cur.Style != r.shape {
			r.setShape(cur.Style)
		}
	}
	if visible != r.visible {
		r.visible = visible
		r.mode(25, visible)
	}
}

func (r *Renderer) setShape(shape screen.CursorStyle) {
	r.shape = shape
	r.out = append(r.out, "\x1b["...)
	r.out = strconv.AppendInt(r.out, int64(shape), 10)
	r.out = append(r.out, " q"...)
}
