package view

import (
	"hash/maphash"
	"strconv"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// row is the known content of a row of the window. A watcher costs eight bytes a cell.
type row struct {
	keys  []uint64 // of its cells, without trailing blanks
	gen   uint64   // generation of the screen's line that it shows, 0 for none
	known bool     // false if the content is unknown
}

// scratch is memory that only drawing needs.
type scratch struct {
	line  []screen.Cell
	keys  []uint64
	moved []row
	rowOf map[uint64]int
}

var scratches = sync.Pool{New: func() any { return &scratch{rowOf: make(map[uint64]int)} }}

var (
	blank    = screen.Cell{Text: " ", Width: 1}
	blankKey = key(blank)
	seed     = maphash.MakeSeed()
)

// key identifies the look of a cell: cells that look different have different keys. It is the
// packed cell if that fits in 63 bits, and else a hash that no program can predict.
func key(c screen.Cell) uint64 {
	// The common case; the rest would return the same.
	if len(c.Text) == 1 && c.Style == (screen.Style{}) {
		return uint64(c.Text[0]) | uint64(c.Width)<<50
	}
	ch, size := utf8.DecodeRuneInString(c.Text)
	if size == 0 {
		ch = 0
	}
	fg, ok := packed(c.Style.Fg)
	bg, ok2 := packed(c.Style.Bg)
	if size == len(c.Text) && ok && ok2 && c.Style.UnderlineColor.Default() {
		return uint64(ch) | uint64(c.Style.Attr)<<21 | uint64(
			c.Style.Underline)<<29 | fg<<32 | bg<<41 | uint64(c.Width)<<50
	}
	return maphash.Comparable(seed, c) | 1<<63
}

// packed returns a colour in 9 bits, unless it is an RGB colour.
func packed(c screen.Color) (uint64, bool) {
	if c.Default() {
		return 0, true
	}
	i, ok := c.Index()
	return 1<<8 | uint64(i), ok
}

func keyAt(keys []uint64, x int) uint64 {
	if x < len(keys) {
		return keys[x]
	}
	return blankKey
}

// drawRow makes row y of the window show want, a line without trailing blanks, which is not a line
// of the screen yet.
func (r *Renderer) drawRow(y int, want []screen.Cell) {
	shown := &r.shown[y]
	shown.gen = 0
	if !shown.known {
		r.moveTo(y, 0)
		r.setPen(screen.Style{})
		r.out = append(r.out, "\x1b[K"...)
		shown.known = true
	}
	have, keys := shown.keys, r.scratch.keys[:0]
	for _, c := range want {
		keys = append(keys, key(c))
	}
	r.scratch.keys = keys
	for x := 0; x < max(len(keys), len(have)); {
		if keyAt(keys, x) == keyAt(have, x) {
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
		// To draw a short way once more takes fewer bytes than to move.
		for near := x - r.x; r.y == y && r.x >= 0 && r.x < x && near <= len("\x1b[C") &&
			len(want[r.x].Text) == 1 && want[r.x].Style == r.pen; r.x++ {
			r.out = append(r.out, want[r.x].Text[0])
		}
		r.moveTo(y, x)
		r.cell(want[x])
		x += int(want[x].Width)
		// A following ASCII character in the same style needs only one byte.
		from := x
		for ; r.x == x && x < len(want) && len(want[x].Text) == 1 && keys[x] != keyAt(have, x) &&
			want[x].Style == r.pen; x++ {
			r.out = append(r.out, want[x].Text[0])
			r.x++
		}
		if x > from && r.x >= r.cols {
			r.x = -1
		}
	}
	if n := len(keys); n > cap(have) {
		have = make([]uint64, 0, min((n+15)&^15, r.cols))
	}
	shown.keys = append(have[:0], keys...)
}

// clip returns the part of line in the window, without trailing blanks.
func (r *Renderer) clip(line []screen.Cell) []screen.Cell {
	line = line[min(r.x0, len(line)):]
	line = line[:min(r.cols, len(line))]
	// Half of a wide character becomes a blank.
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

// cell draws one cell at the cursor.
func (r *Renderer) cell(c screen.Cell) {
	r.setPen(c.Style)
	steady := steady(c.Text)
	if c.Width == 2 && !steady {
		// A terminal that displays the cluster narrower keeps the old content of its second column.
		r.sequence(2, 0, 'X')
	}
	r.out = append(r.out, c.Text...)
	r.x += int(c.Width)
	if !steady || r.x >= r.cols {
		r.x = -1
	}
}

// steady reports whether every terminal agrees on the width of text, and none joins it with
// adjacent text. After other text the cursor is moved explicitly.
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
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Greek,
		unicode.Cyrillic)
}

func (r *Renderer) setPen(st screen.Style) {
	if st == r.pen {
		return
	}
	r.out = st.AppendSGR(r.out, r.pen)
	r.pen = st
}

// moveTo moves the terminal's cursor by the shortest sequence.
func (r *Renderer) moveTo(y, x int) {
	switch {
	case r.x == x && r.y == y:
		return
	case r.y == y && x == 0:
		r.out = append(r.out, '\r')
	case r.y+1 == y && x == 0 && r.inArea(y):
		r.out = append(r.out, "\r\n"...)
	case r.x >= 0 && r.y == y && x > r.x:
		r.sequence(x-r.x, 0, 'C')
	case x == 0:
		r.sequence(y+1, 0, 'H')
	default:
		r.sequence(y+1, x+1, 'H')
	}
	r.x, r.y = x, y
}

// inArea reports whether row y shows the program, so that a line feed in the row above only moves
// the cursor.
func (r *Renderer) inArea(y int) bool {
	_, rows := r.Area()
	return y < rows
}

// sequence appends a control sequence with one or two parameters. It omits a second one of 0, and a
// single one of 1.
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

// setModes changes the input modes of the person's terminal to those of m; other fields of m do not
// count. Pastes are always bracketed, because Keys needs that.
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
