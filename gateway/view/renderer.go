package view

import (
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// Frame is what a person should see.
type Frame struct {
	// Screen is the program's screen; it is read during Draw only, under the caller's lock. Nil shows nothing. The lines that it
	// keeps (Options.Scrollback) are those that a person can get who fell behind.
	Screen *screen.Screen
	// Status is plain text for the bottom row of the person's window. Control and invisible characters in it are dropped.
	Status string
	// Brief are shorter forms of Status for windows in which it does not fit, the longest first. The last one is cut where that
	// does not fit either.
	Brief []string
	// Driver says that the person holds the keyboard: their terminal gets the input modes that the program switched on.
	Driver bool
	// Hold lets lines that left the screen wait for a later frame when they are more than the window has rows, as in a flood: see Held. Nothing
	// else waits for them.
	Hold bool
}

// Renderer keeps what one person's terminal shows and writes what is missing. It is not safe for concurrent use.
//
// It draws on the terminal's main screen while the program is on its own main screen, below what was there before, and lines that
// leave the window at the top leave it into the terminal's scrollback; on the alternate screen while the program is on that. What a
// terminal had in its scrollback is never erased, whatever the program asks for.
//
// The bottom row of the window is the status line; the program has the rows above, clipped to the window when its screen is larger, in
// which case the window follows the cursor. A line then goes to the scrollback when the window leaves it behind, cut as the window
// shows it, and once more if it is changed there and left behind again. A window of one row has no status line, one of fewer than three
// no scrollback.
type Renderer struct {
	cols, rows int
	entered    bool
	redraw     bool // the size has changed: nothing is known of the window
	place      place
	begun      bool // the main screen is ours: what was there before is in the scrollback
	mainCols   int  // of the window when it was ours last
	mainRows   int  //

	shown  []row          // the rows of the window, the status line last
	source *screen.Screen // whose lines the generations in shown are
	x0, y0 int            // the cell of the source in the window's top left corner
	away   [2]int         // x0, y0 of the place that is not shown
	status []string       // in all its forms
	lines  sent
	held   bool   // lines wait for the scrollback
	pushed uint64 // lines that went there

	pen     screen.Style
	x, y    int // where the terminal's cursor is: x is -1 where we do not know the column, y is nowhere where not the row
	visible bool
	shape   screen.CursorStyle
	modes   screen.Modes // the input modes that are on

	out []byte
	*scratch
}

// place is which of the terminal's screens is drawn on.
type place uint8

const (
	outside place = iota
	onMain
	onAlternate
)

// nowhere is a row that no row is next to.
const nowhere = -9

// maxKept is the largest buffer that is kept from frame to frame.
const maxKept = 8 << 10

// NewRenderer returns a Renderer for a window of a size, clamped to 1..screen.MaxCols by 1..screen.MaxRows.
func NewRenderer(cols, rows int) *Renderer {
	r := &Renderer{}
	r.Resize(cols, rows)
	return r
}

// Enter returns what prepares the person's terminal. The next Draw draws everything.
func (r *Renderer) Enter() []byte {
	if r.entered {
		return nil
	}
	r.entered = true
	r.place, r.begun, r.source = outside, false, nil
	r.visible, r.shape, r.modes, r.pen = true, 0, screen.Modes{}, screen.Style{}
	r.lines = sent{}
	// Without wrapping, a character that the terminal takes for wider than we do never gets into the next row – the lowest is ours.
	return []byte("\x1b[?7l\x1b[?25h\x1b[?2004h")
}

// Leave returns what gives the person's terminal back: modes, colours, cursor and scroll region as they were, and the cursor in an empty row
// below what was drawn, or where it was when nothing was drawn on the main screen. A Renderer may be entered again.
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
			// The terminal has moved its rows about: only the lowest is known to be at the end of them.
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

// Anew makes the next Draw draw the whole window in its place, as what it is then: no line that left the screen in between goes to the
// scrollback, and none is said to be missing. It is for a screen that did not come about before the person's eyes, as after a jump
// in a recording.
func (r *Renderer) Anew() {
	r.lines = sent{anew: true}
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

// Held reports whether lines wait for the scrollback since the last Draw. The next one without Frame.Hold writes them: the newest, and a notice
// that stands for those which the screen no longer keeps.
func (r *Renderer) Held() bool { return r.held }

// Pushed is how many lines have gone to the scrollback so far, for who wants to hold them.
func (r *Renderer) Pushed() uint64 { return r.pushed }

// Draw returns the bytes that make the person's terminal show f, empty when it does already or before Enter. They must reach the
// terminal whole and in order. They are valid until the next call.
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
		r.out = nil // it is the caller's to hold; watchers who look at nothing new are many
	}
	return out
}

// goTo makes the terminal show the one of its screens that the program is on.
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
				r.depart() // the cursor is kept where somebody who leaves from there wants it
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

// beginMain moves what is not ours out of the window, into the scrollback.
func (r *Renderer) beginMain() {
	r.setPen(screen.Style{})
	switch {
	case !r.begun:
		// As many line feeds as there are rows, from wherever the cursor is, scroll up just the rows down to the cursor.
		r.out = append(r.out, '\r')
		r.lineFeeds(r.rows)
	case r.rows > r.mainRows:
		// A terminal that grows may take lines back from its scrollback, at the top, and they are not to be drawn over.
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

// region makes the rows above the status line, but for the lowest n of them, the ones that scroll.
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
		r.x, r.y = -1, nowhere // a terminal of one row has no region to set, and leaves the cursor
	}
}

// depart leaves the main screen without a status line and with the cursor below what was drawn.
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

// leaveAlternate goes back to the main screen, where the cursor is when it was left.
func (r *Renderer) leaveAlternate() {
	r.setPen(screen.Style{})
	r.out = append(r.out, "\x1b[r\x1b[?1049l"...)
	r.x, r.y = -1, nowhere
}

// follow chooses the part of s that the window shows: the same as before while the cursor is in it.
func (r *Renderer) follow(s *screen.Screen) {
	x0, y0 := 0, 0
	if s != nil {
		cols, rows := r.Area()
		sc, sr := s.Size()
		cur := s.Cursor()
		x0 = within(r.x0, cur.X, cols, sc, cols/2)
		y0 = within(r.y0, cur.Y, rows, sr, 0)
	}
	if s != r.source || x0 != r.x0 {
		for y := range r.shown {
			r.shown[y].gen = 0
		}
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
