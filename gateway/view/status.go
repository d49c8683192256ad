package view

import (
	"slices"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
)

// drawStatus draws the status line, in inverse video, as wide as the window: the first form that
// fits.
func (r *Renderer) drawStatus(text string, brief []string) {
	y := r.rows - 1
	if r.shown[y].known && len(r.status) == 1+len(brief) && r.status[0] == text &&
		slices.Equal(r.status[1:], brief) {
		return
	}
	r.status = append(append(r.status[:0], text), brief...)
	for i, form := range r.status {
		if line, cut := statusLine(form, r.cols); !cut || i == len(brief) {
			r.drawRow(y, line)
			return
		}
	}
}

// layouts are screens for statusLine: with a hundred people, each arrival changes the line of all
// others.
var layouts = sync.Pool{New: func() any { return screen.New(screen.Options{Cols: 1, Rows: 2}) }}

// statusLine lays out plain text in one row, and reports whether it was too long. A screen of ours
// does it, so that the widths are those of a program's text.
func statusLine(said string, cols int) (line []screen.Cell, cut bool) {
	s := layouts.Get().(*screen.Screen)
	defer layouts.Put(s)
	s.Resize(cols, 2)
	_, _ = s.Write([]byte("\x1bc")) // reset; a write to memory never fails
	var buf [utf8.UTFMax]byte
	for _, c := range text.Mark(said) {
		if !unicode.IsGraphic(c) || c == utf8.RuneError {
			continue
		}
		_, _ = s.Write(utf8.AppendRune(buf[:0], c))
		if cut = s.Cursor().Y > 0; cut {
			break
		}
	}
	line = s.Line(0)
	if cut {
		last := len(line) - 1
		if line[last].Width == 0 {
			line[last-1] = blank
		}
		line[last] = screen.Cell{Text: "…", Width: 1}
	}
	for i := range line {
		line[i].Style = screen.Style{Attr: screen.Inverse}
	}
	return line, cut
}
