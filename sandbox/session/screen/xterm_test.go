package screen

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen/screentest"
)

// show returns the screen of x in the format of picture.
func show(x *screentest.Xterm) string {
	v := x.Show()
	p := pictureOf{cols: v.Cols, rows: v.Rows, top: v.Top, bottom: v.Bottom, modes: modesOf(v),
		cursor: Cursor{X: min(v.X, v.Cols-1), Y: v.Y, Visible: v.Visible}, pending: v.X >= v.Cols}
	for _, l := range v.Lines {
		var line []Cell
		for i, text := range l.Text {
			st := v.Styles[l.Style[i]]
			c := Cell{Text: visible(text), Width: uint8(l.Width[i]), Style: Style{
				Fg: Color(st[0]), Bg: Color(st[1]), UnderlineColor: Color(st[2]), Attr: Attr(st[3]),
				Underline: Underline(st[4])}}
			if c.Width == 0 && (i == 0 || l.Width[i-1] != 2) || c.Width == 2 && i+1 == v.Cols {
				c.Text, c.Width = " ", 1 // a half character that xterm.js leaves
			}
			line = append(line, c)
		}
		p.lines = append(p.lines, line)
	}
	return p.String()
}

func modesOf(v screentest.Shown) Modes {
	return Modes{
		AltScreen: v.Alternate, AppCursor: v.AppCursor, AppKeypad: v.AppKeypad,
		AutoWrap: v.AutoWrap, BracketedPaste: v.Paste,
		CursorVisible: v.Visible, FocusEvents: v.Focus, Insert: v.Insert, Origin: v.Origin,
		Synchronized: v.Synchronized,
		Mouse: map[string]Mouse{"x10": MouseX10, "vt200": MouseNormal, "drag": MouseButton,
			"any": MouseAny}[v.Mouse],
		MouseEncoding: map[string]MouseEncoding{"SGR": MouseSGR}[v.Encoding],
	}
}

// visible returns text without the runes that our screen drops. xterm.js and tmux keep directions
// in their cells, so that a person could see text in another order than it has.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case invisible(r):
			return -1
		case r == lineSeparator, r == paragraphSeparator:
			return ' '
		}
		return r
	}, text)
}

// pictureOf is everything that is compared of two terminals.
type pictureOf struct {
	cols, rows, top, bottom int
	cursor                  Cursor
	pending                 bool // the next character first wraps
	modes                   Modes
	lines                   [][]Cell
}

// String returns a text that a person can compare.
func (p pictureOf) String() string {
	var b strings.Builder
	p.modes.CursorBlink = false
	fmt.Fprintf(&b, "%d by %d, cursor at %d,%d pending %t, region %d to %d, modes %+v\n",
		p.cols, p.rows, p.cursor.X, p.cursor.Y, p.pending, p.top, p.bottom, p.modes)
	for _, line := range p.lines {
		line = slices.Clone(line)
		for i, c := range line {
			if c.Style.Underline == NoUnderline {
				line[i].Style.UnderlineColor = 0 // it is not visible
			}
		}
		for len(line) > 0 && line[len(line)-1].Blank() {
			line = line[:len(line)-1]
		}
		var last Style
		for _, c := range line {
			if c.Style != last {
				fmt.Fprintf(&b, "‹%s›", c.Style.appendParams(nil, Style{}))
				last = c.Style
			}
			b.WriteString(c.Text)
			if c.Width == 2 {
				b.WriteString("→") // not for the second column, so that a half character is visible
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// picture returns the screen of s.
func picture(s *Screen) string {
	p := pictureOf{cols: s.cols, rows: s.rows, top: s.g.top, bottom: s.g.bottom, modes: s.Modes(),
		cursor: s.Cursor(), pending: s.x >= s.cols}
	for y := range s.rows {
		p.lines = append(p.lines, s.Line(y))
	}
	return p.String()
}

// TestAgainstXterm checks that our screen shows the same as xterm.js for random programs: cells,
// cursor, margins and modes.
func TestAgainstXterm(t *testing.T) {
	x := screentest.StartXterm(t)
	n := 2000
	if testing.Short() {
		n = 300
	}
	fails := 0
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 21))
		cols, rows := 2+r.IntN(30), 2+r.IntN(8)
		in := program(r, 5+r.IntN(60), cols, rows)
		s := New(Options{Cols: cols, Rows: rows})
		s.Write([]byte(in))
		x.Order('n', cols, rows, "")
		x.Order('w', 0, 0, in)
		if want, got := show(x), picture(s); got != want {
			t.Errorf("stream %d: %q\nxterm.js: %s\nours: %s", seed, in, want, got)
			if fails++; fails == 3 {
				break
			}
		}
	}
}

// TestResizeAgainstXterm checks that the alternate screen is cut as in xterm.js, for any content.
// xterm.js keeps the columns that were cut off, although they are not visible. So the screen
// becomes narrower only once, at the end, and never grows. The primary screen follows tmux:
// TestResizeAgainstTmux.
func TestResizeAgainstXterm(t *testing.T) {
	x := screentest.StartXterm(t)
	n := 200
	if testing.Short() {
		n = 50
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 22))
		cols, rows := 12+r.IntN(30), 6+r.IntN(8)
		s := New(Options{Cols: cols, Rows: rows})
		x.Order('n', cols, rows, "")
		var steps []string
		write := func(in string) {
			steps = append(steps, fmt.Sprintf("%q", in))
			s.Write([]byte(in))
			x.Order('w', 0, 0, in)
		}
		write("\x1b[?1049h")
		g := newGrammar(r, cols, rows)
		for step := range 4 {
			g.cols, g.rows = cols, rows
			in := g.pieces(20)
			in = strings.ReplaceAll(in, "\x1bc", "\x1b[?6l\x1b[?7h")
			for _, leave := range []string{"\x1b[?47", "\x1b[?1047", "\x1b[?1049"} {
				in = strings.ReplaceAll(in, leave, "\x1b[?2004")
			}
			write(in)
			rows = max(rows-r.IntN(3), 2)
			if step == 3 {
				cols = max(cols-r.IntN(10), 2)
			}
			steps = append(steps, fmt.Sprintf("%d by %d", cols, rows))
			s.Resize(cols, rows)
			x.Order('r', cols, rows, "")
			check(t, s)
			if want, got := show(x), picture(s); got != want {
				t.Fatalf("stream %d: %s\nxterm.js: %s\nours: %s", seed, strings.Join(steps, ", "),
					want, got)
			}
		}
	}
}

// TestRecordedAgainstXterm checks that our screen shows the same as xterm.js for recorded programs,
// at each tenth of the recording. See testdata/recorded/README.md for how they were recorded.
func TestRecordedAgainstXterm(t *testing.T) {
	x := screentest.StartXterm(t)
	files, err := filepath.Glob("testdata/recorded/*.rec")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	for _, file := range files {
		in, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{Cols: 80, Rows: 24})
		x.Order('n', 80, 24, "")
		for part := range 10 {
			p := in[len(in)*part/10 : len(in)*(part+1)/10]
			s.Write(p)
			x.Order('w', 0, 0, string(p))
			if want, got := show(x), picture(s); got != want {
				t.Fatalf("%s, part %d\nxterm.js: %s\nours: %s", file, part, want, got)
			}
		}
	}
	t.Logf("%d recordings", len(files))
}
