package view

import (
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// Frame is what a person should see.
type Frame struct {
	// Screen is the program's screen; it is read during Draw only, under the caller's lock. Nil
	// shows nothing. People who fell behind can get only the lines that it keeps
	// (Options.Scrollback).
	Screen *screen.Screen
	// Status is plain text for the bottom row of the person's window. Control and invisible
	// characters in it are dropped.
	Status string
	// Brief are shorter forms of Status for windows in which it does not fit, the longest first.
	// The last one is truncated if needed.
	Brief []string
	// Driver says that the person has the keyboard: their terminal gets the input modes that the
	// program set.
	Driver bool
	// Hold delays lines that left the screen to a later frame if they are more than the window has
	// rows, as in a flood: see Held. It delays nothing else.
	Hold bool
}

// Renderer tracks the content of one person's terminal and writes the differences. It is not safe
// for concurrent use.
//
// While the program is on its main screen, it draws on the terminal's main screen, below the
// previous content, and lines that leave the window at the top go to the terminal's scrollback.
// While the program is on the alternate screen, so is the terminal. The terminal's scrollback is
// never erased, whatever the program asks for.
//
// The bottom row of the window is the status line. The program has the rows above, clipped to the
// window if its screen is larger; then the window follows the cursor. A line then goes to the
// scrollback when it leaves the window, cut to the window's width, and again if it is changed there
// and leaves again. A window of one row has no status line, one of fewer than three rows no
// scrollback.
type Renderer struct {
	// History is how many lines that left the first screen before it was drawn go to the
	// terminal's scrollback, the newest ones, if the screen keeps them. More than 1,000 count as
	// 1,000.
	History int

	cols, rows int
	entered    bool
	redraw     bool // the size has changed: the content of the window is unknown
	place      place
	begun      bool // the main screen is ours: its earlier content is in the scrollback
	mainCols   int  // of the window when we last used the main screen
	mainRows   int  //

	shown  []row          // the rows of the window, the status line last
	source *screen.Screen // the screen whose line generations are in shown
	x0, y0 int            // the cell of the source in the window's top left corner
	away   [2]int         // x0, y0 of the screen that is not shown
	panned bool           // the window does not follow the cursor
	pan    [2]int         // cells by which the next Draw moves it
	status []string       // in all its forms
	lines  sent
	held   bool   // lines wait for the scrollback
	pushed uint64 // number of lines sent to the scrollback

	pen screen.Style
	// Position of the terminal's cursor: x is -1 if the column is unknown, y is nowhere if the row
	// is.
	x, y    int
	visible bool
	shape   screen.CursorStyle
	modes   screen.Modes // the active input modes

	out []byte
	*scratch
}

// place is the terminal's screen in use.
type place uint8

const (
	outside place = iota
	onMain
	onAlternate
)

// nowhere is a row that is adjacent to none.
const nowhere = -9

// maxKept is the largest buffer that is kept between frames.
const maxKept = 8 << 10

// NewRenderer returns a Renderer for a window of a size, clamped to 1..screen.MaxCols by
// 1..screen.MaxRows.
func NewRenderer(cols, rows int) *Renderer {
	r := &Renderer{}
	r.Resize(cols, rows)
	return r
}

// Enter returns bytes that prepare the person's terminal. The next Draw draws everything.
func (r *Renderer) Enter() []byte {
	if r.entered {
		return nil
	}
	r.entered = true
	r.place, r.begun, r.source = outside, false, nil
	r.visible, r.shape, r.modes, r.pen = true, 0, screen.Modes{}, screen.Style{}
	r.lines = sent{}
	// Without wrapping, a character that the terminal displays wider than we assume never reaches
	// the next row: the last row is ours.
	return []byte("\x1b[?7l\x1b[?25h\x1b[?2004h")
}

// Leave returns bytes that restore the person's terminal: modes, colours, cursor and scroll region.
// The cursor is then in an empty row below the drawn content, or unmoved if nothing was drawn on
// the main screen. A Renderer may be entered again.
func (r *Renderer) Leave() []byte {
	if !r.entered {
		return nil
	}
	r.entered = false
	r.out = nil
	r.setModes(screen.Modes{})
	if r.shape != 0 {
		r.setShape(0)
	}
	switch r.place {
	case onMain:
		r.depart()
	case onAlternate:
		r.leaveAlternate()
		if r.begun && (r.cols != r.mainCols || r.rows != r.mainRows) {
			// The terminal has moved its rows: only the last row is known to be at the end.
			r.sequence(r.rows, 0, 'H')
			r.lineFeeds(1)
		}
	}
	if r.begun && r.rows == 1 {
		r.out = append(r.out, "\r\n"...) // there is no row below
	}
	out := append(r.out, "\x1b[?2004l\x1b[?25h\x1b[?7h"...)
	r.out = nil
	return out
}

// Resize changes the size of the window. The next Draw draws everything.
func (r *Renderer) Resize(cols, rows int) {
	r.cols = min(max(cols, 1), screen.MaxCols)
	r.rows = min(max(rows, 1), screen.MaxRows)
	r.shown = make([]row, r.rows)
	r.redraw = true
}

// Anew makes the next Draw draw the whole window in place: no line that left the screen since goes
// to the scrollback, and none is reported as missing. It is for a screen that the person has not
// seen change, as after a jump in a recording.
func (r *Renderer) Anew() {
	r.lines = sent{anew: true}
	r.redraw = true
}

// Area returns the part of the window that shows the program: the size for a terminal whose driver
// has this window.
func (r *Renderer) Area() (cols, rows int) {
	if r.rows == 1 {
		return r.cols, 1
	}
	return r.cols, r.rows - 1
}

// Clipped reports whether s is larger than its area in the window.
func (r *Renderer) Clipped(s *screen.Screen) bool {
	sc, sr := s.Size()
	cols, rows := r.Area()
	return sc > cols || sr > rows
}

// Offset returns the cell of the program's screen that the last Draw put in the top left corner of
// the window: 0, 0 unless it is clipped.
func (r *Renderer) Offset() (x, y int) { return r.x0, r.y0 }

// Pan makes the next Draw show a part of a clipped screen that is half a window further: -1 is left
// and up, 1 is right and down. From then on the window stays there until Follow.
func (r *Renderer) Pan(x, y int) {
	cols, rows := r.Area()
	r.panned = true
	r.pan[0] += x * max(cols/2, 1)
	r.pan[1] += y * max(rows/2, 1)
}

// Follow makes the window follow the cursor, as it does before Pan.
func (r *Renderer) Follow() { r.panned, r.pan = false, [2]int{} }

// Held reports whether lines wait for the scrollback since the last Draw. The next Draw without
// Frame.Hold writes them: the newest, and a notice in place of those that the screen no longer
// keeps.
func (r *Renderer) Held() bool { return r.held }

// Pushed returns how many lines have gone to the scrollback so far, for callers that set Hold.
func (r *Renderer) Pushed() uint64 { return r.pushed }

// Draw returns bytes that make the person's terminal show f, empty if it does already or before
// Enter. They must reach the terminal complete and in order. They are valid until the next call.
func (r *Renderer) Draw(f Frame) []byte {
	r.out = r.out[:0]
	if !r.entered {
		return nil
	}
	r.scratch = scratches.Get().(*scratch)
	defer func() {
		scratches.Put(r.scratch)
		r.scratch = nil
	}()
	r.held = false
	r.goTo(f.Screen)
	r.follow(f.Screen)
	_, rows := r.Area()
	sourceRows := 0
	if f.Screen != nil {
		_, sourceRows = f.Screen.Size()
		if r.place == onMain {
			r.send(f.Screen, f.Hold)
		}
		r.scroll(f.Screen, rows)
	}
	for y := range rows {
		switch from := y + r.y0; {
		case from >= sourceRows:
			r.drawRow(y, nil)
		case f.Screen.LineGeneration(from) != r.shown[y].gen:
			r.line = f.Screen.AppendLine(r.line[:0], from)
			r.drawRow(y, r.clip(r.line))
			r.shown[y].gen = f.Screen.LineGeneration(from)
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
	out := r.out
	if cap(out) > maxKept {
		r.out = nil // the caller keeps it; many watchers have nothing new to see
	}
	return out
}

// goTo switches the terminal to the screen that the program uses.
func (r *Renderer) goTo(s *screen.Screen) {
	to := r.place
	switch {
	case s != nil && s.Modes().AltScreen:
		to = onAlternate
	case s != nil || to == outside:
		to = onMain
	}
	if to == r.place && !r.redraw {
		return
	}
	if to != r.place {
		r.away, r.x0, r.y0 = [2]int{r.x0, r.y0}, r.away[0], r.away[1]
		switch {
		case r.place == onAlternate:
			r.leaveAlternate()
		case to == onAlternate:
			if r.place == onMain {
				r.depart() // the cursor is saved at the right place for a later Leave
			}
			r.setPen(screen.Style{})
			r.out = append(r.out, "\x1b[?1049h"...)
		}
	}
	r.place = to
	if to == onMain {
		r.beginMain()
	}
	r.redraw = false
	clear(r.shown)
	r.status = nil
	r.region(0)
}

// beginMain moves the earlier content of the window into the scrollback.
func (r *Renderer) beginMain() {
	r.setPen(screen.Style{})
	switch {
	case !r.begun:
		// As many line feeds as there are rows scroll up just the rows down to the cursor, wherever
		// it is.
		r.out = append(r.out, '\r')
		r.lineFeeds(r.rows)
	case r.rows > r.mainRows:
		// A terminal that grows may take lines back from its scrollback, at the top; they must not
		// be overwritten.
		r.out = append(r.out, "\x1b[r"...)
		r.sequence(r.rows, 0, 'H')
		r.lineFeeds(r.rows - r.mainRows)
	}
	r.begun, r.mainCols, r.mainRows = true, r.cols, r.rows
}

func (r *Renderer) lineFeeds(n int) {
	for range n {
		r.out = append(r.out, '\n')
	}
}

// region sets the scroll region to the rows above the status line, except the last n of them.
func (r *Renderer) region(n int) {
	_, rows := r.Area()
	if rows-n < 2 {
		r.noRegion()
		return
	}
	r.sequence(1, rows-n, 'r')
	r.x, r.y = 0, 0
}

func (r *Renderer) noRegion() {
	r.out = append(r.out, "\x1b[r"...)
	r.x, r.y = 0, 0
	if r.rows == 1 {
		r.x, r.y = -1, nowhere // a terminal of one row has no region, and does not move the cursor
	}
}

// depart leaves the main screen without a status line, and with the cursor below the drawn content.
func (r *Renderer) depart() {
	r.setPen(screen.Style{})
	r.noRegion()
	_, rows := r.Area()
	end := 0
	for y := range rows {
		switch {
		case r.redraw:
			end = rows // anything may be there
		case len(r.shown[y].keys) > 0:
			end = y + 1
		}
	}
	if r.rows == 1 {
		return
	}
	r.moveTo(rows, 0)
	r.out = append(r.out, "\x1b[K"...)
	r.moveTo(end, 0)
}

// leaveAlternate returns to the main screen, where the cursor is at its saved place.
func (r *Renderer) leaveAlternate() {
	r.setPen(screen.Style{})
	r.out = append(r.out, "\x1b[r\x1b[?1049l"...)
	r.x, r.y = -1, nowhere
}

// follow chooses the part of s that the window shows: the same as before if it has the cursor, or
// after Pan.
func (r *Renderer) follow(s *screen.Screen) {
	x0, y0 := 0, 0
	if s != nil {
		cols, rows := r.Area()
		sc, sr := s.Size()
		cur := s.Cursor()
		if r.panned {
			x0 = min(max(r.x0+r.pan[0], 0), max(sc-cols, 0))
			y0 = min(max(r.y0+r.pan[1], 0), max(sr-rows, 0))
			r.pan = [2]int{}
		} else {
			x0 = within(r.x0, cur.X, cols, sc, cols/2)
			y0 = within(r.y0, cur.Y, rows, sr, 0)
		}
	}
	if s != r.source || x0 != r.x0 {
		for y := range r.shown {
			r.shown[y].gen = 0
		}
	}
	r.source, r.x0, r.y0 = s, x0, y0
}

// within moves the window of length n over a line of length total, starting at from, so that pos is
// in it. If it must move it leaves margin beyond pos, so that the next character does not move it
// again. If it must move back it shows the beginning if it can, with all that was printed since the
// screen was cleared.
func within(from, pos, n, total, margin int) int {
	switch {
	case pos < min(from, n):
		from = 0
	case pos < from:
		from = pos - margin
	case pos >= from+n:
		from = pos - n + 1 + margin
	}
	return max(min(from, total-n), 0)
}

// drawCursor moves the cursor to the program's position, or hides it.
func (r *Renderer) drawCursor(s *screen.Screen) {
	visible := false
	if s != nil {
		cur := s.Cursor()
		cols, rows := r.Area()
		x, y := cur.X-r.x0, cur.Y-r.y0
		visible = cur.Visible && x >= 0 && x < cols && y >= 0 && y < rows
		if visible {
			r.moveTo(y, x)
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
