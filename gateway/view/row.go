package view

import (
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

var blank = screen.Cell{Text: " ", Width: 1}

func at(line []screen.Cell, x int) screen.Cell {
	if x < len(line) {
		return line[x]
	}
	return blank
}

// drawRow makes row y of the window show want, a line without trailing blanks, and keeps a copy of it.
func (r *Renderer) drawRow(y int, want []screen.Cell) {
	have := r.shown[y]
	for x := 0; x < max(len(want), len(have)); {
		if at(want, x) == at(have, x) {
			x++
			continue
		}
		if x >= len(want) {
			r.moveTo(y, x)
			r.setPen(screen.Style{})
			r.out = append(r.out, "\x1b[K"...)
			break
		}
		if want[x].Width == 0 {
			x-- // only the second half differs: a wide cluster is drawn whole
		}
		r.moveTo(y, x)
		r.cell(want[x])
		x += int(want[x].Width)
	}
	r.shown[y] = append(have[:0], want...)
}

// cell draws one cell at the cursor.
func (r *Renderer) cell(c screen.Cell) {
	r.setPen(c.Style)
	steady := steady(c.Text)
	if c.Width == 2 && !steady {
		// A terminal that takes the cluster for narrower leaves what was in its second column.
		r.sequence(2, 0, 'X')
	}
	r.out = append(r.out, c.Text...)
	r.x += int(c.Width)
	if !steady || r.x >= r.cols {
		r.x = -1
	}
}

// steady reports whether every terminal agrees on the width of text, and none joins it with what is drawn next to it. After others the
// cursor is moved to where it must be.
func steady(text string) bool {
	if len(text) == 1 {
		return true
	}
	r, size := utf8.DecodeRuneInString(text)
	switch {
	case size != len(text):
		return false
	case r < 0x300, r >= 0x2500 && r < 0x25a0: // Latin, box drawing
		return true
	}
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Greek, unicode.Cyrillic)
}

// drawStatus draws the status line, in inverse video, as wide as the window: the first form that fits.
func (r *Renderer) drawStatus(text string, brief []string) {
	y := r.rows - 1
	if len(r.shown[y]) > 0 && len(r.status) == 1+len(brief) && r.status[0] == text && slices.Equal(r.status[1:], brief) {
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

// statusLine lays out plain text in one row, and reports whether it was too long for it. A screen of our own does it, with the
// widths that it gives to a program's text.
func statusLine(text string, cols int) (line []screen.Cell, cut bool) {
	s := screen.New(screen.Options{Cols: cols, Rows: 2})
	for _, c := range text {
		if !unicode.IsGraphic(c) || c == utf8.RuneError {
			continue
		}
		_, _ = s.Write(utf8.AppendRune(nil, c)) // in memory: it takes everything
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

func (r *Renderer) setPen(st screen.Style) {
	r.out = st.AppendSGR(r.out, r.pen)
	r.pen = st
}

// moveTo moves the terminal's cursor by the shortest sequence.
func (r *Renderer) moveTo(y, x int) {
	switch {
	case r.x == x && r.y == y:
		return
	case r.x >= 0 && r.y == y && x == 0:
		r.out = append(r.out, '\r')
	case r.x >= 0 && r.y == y && x > r.x:
		r.sequence(x-r.x, 0, 'C')
	case x == 0:
		r.sequence(y+1, 0, 'H')
	default:
		r.sequence(y+1, x+1, 'H')
	}
	r.x, r.y = x, y
}

// sequence appends a control sequence with one or two parameters; a second one of 0 is left out, and so is a first one of 1
// that stands alone.
func (r *Renderer) sequence(a, b int, final byte) {
	r.out = append(r.out, "\x1b["...)
	if a != 1 || b != 0 {
		r.out = strconv.AppendInt(r.out, int64(a), 10)
	}
	if b != 0 {
		r.out = append(r.out, ';')
		r.out = strconv.AppendInt(r.out, int64(b), 10)
	}
	r.out = append(r.out, final)
}

// mode switches a private mode of the person's terminal.
func (r *Renderer) mode(n int, on bool) {
	r.out = append(r.out, "\x1b[?"...)
	r.out = strconv.AppendInt(r.out, int64(n), 10)
	if on {
		r.out = append(r.out, 'h')
	} else {
		r.out = append(r.out, 'l')
	}
}

// setModes switches the input modes of the person's terminal from what they are to those of m; its other fields do not count.
func (r *Renderer) setModes(m screen.Modes) {
	have := &r.modes
	flag := func(n int, have *bool, want bool) {
		if *have != want {
			*have = want
			r.mode(n, want)
		}
	}
	flag(1, &have.AppCursor, m.AppCursor)
	flag(1004, &have.FocusEvents, m.FocusEvents)
	flag(2004, &have.BracketedPaste, m.BracketedPaste)
	if have.AppKeypad != m.AppKeypad {
		have.AppKeypad = m.AppKeypad
		if m.AppKeypad {
			r.out = append(r.out, "\x1b="...)
		} else {
			r.out = append(r.out, "\x1b>"...)
		}
	}
	if have.Mouse != m.Mouse {
		if have.Mouse != screen.MouseOff {
			r.mode(int(have.Mouse), false)
		}
		if m.Mouse != screen.MouseOff {
			r.mode(int(m.Mouse), true)
		}
		have.Mouse = m.Mouse
	}
	if have.MouseEncoding != m.MouseEncoding {
		if have.MouseEncoding != screen.MouseDefault {
			r.mode(int(have.MouseEncoding), false)
		}
		if m.MouseEncoding != screen.MouseDefault {
			r.mode(int(m.MouseEncoding), true)
		}
		have.MouseEncoding = m.MouseEncoding
	}
}
