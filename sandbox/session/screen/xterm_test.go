package screen

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// xterm is a terminal of xterm.js, with the character widths of Unicode 11, in a process of node.
type xterm struct {
	t   *testing.T
	in  *bufio.Writer
	out *bufio.Reader
}

// startXterm starts the process, which ends with the test. Where it is not installed the test is skipped.
func startXterm(t *testing.T) *xterm {
	t.Helper()
	_, err := os.Stat("testdata/xterm/node_modules/@xterm/headless")
	if err == nil {
		_, err = exec.LookPath("node")
	}
	if err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatalf("xterm.js, the reference terminal, is not installed: %v; scripts/setup test installs it", err)
		}
		t.Skipf("xterm.js, the reference terminal, is not installed: %v", err)
	}
	cmd := exec.Command("node", "testdata/xterm/oracle.js")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // its end
		if err := cmd.Wait(); err != nil {
			t.Errorf("oracle.js: %v", err)
		}
	})
	return &xterm{t: t, in: bufio.NewWriterSize(in, 64<<10), out: bufio.NewReaderSize(out, 64<<10)}
}

// order sends one request; see oracle.js.
func (x *xterm) order(op byte, cols, rows int, data string) {
	x.t.Helper()
	head := []byte{op}
	head = binary.BigEndian.AppendUint16(head, uint16(cols))
	head = binary.BigEndian.AppendUint16(head, uint16(rows))
	head = binary.BigEndian.AppendUint32(head, uint32(len(data)))
	_, _ = x.in.Write(head)
	if _, err := io.WriteString(x.in, data); err != nil {
		x.t.Fatalf("oracle.js: %v", err)
	}
}

// answer reads the answer to the request that was sent last.
func (x *xterm) answer(v any) {
	x.t.Helper()
	if err := x.in.Flush(); err != nil {
		x.t.Fatalf("oracle.js: %v", err)
	}
	line, err := x.out.ReadBytes('\n')
	if err != nil {
		x.t.Fatalf("oracle.js: %v", err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		x.t.Fatalf("oracle.js: %v in %q", err, line)
	}
}

// shown is what oracle.js says of its terminal.
type shown struct {
	Cols, Rows, X, Y, Top, Bottom int
	Lines                         []struct {
		Text         []string
		Style, Width []int
	}
	Wrapped                                            []bool
	Styles                                             [][5]uint32
	Alternate, Visible, AppCursor, AppKeypad, AutoWrap bool
	Paste, Focus, Insert, Origin, Synchronized         bool
	Mouse, Encoding, Replies                           string
}

// show returns what the terminal shows, in the words of picture.
func (x *xterm) show() string {
	x.t.Helper()
	var v shown
	x.order('s', 0, 0, "")
	x.answer(&v)
	p := pictureOf{cols: v.Cols, rows: v.Rows, top: v.Top, bottom: v.Bottom, modes: v.modes(),
		cursor: Cursor{X: min(v.X, v.Cols-1), Y: v.Y, Visible: v.Visible}, pending: v.X >= v.Cols}
	for _, l := range v.Lines {
		var line []Cell
		for i, text := range l.Text {
			st := v.Styles[l.Style[i]]
			c := Cell{Text: visible(text), Width: uint8(l.Width[i]), Style: Style{
				Fg: Color(st[0]), Bg: Color(st[1]), UnderlineColor: Color(st[2]), Attr: Attr(st[3]), Underline: Underline(st[4])}}
			if c.Width == 0 && (i == 0 || l.Width[i-1] != 2) || c.Width == 2 && i+1 == v.Cols {
				c.Text, c.Width = " ", 1 // half of a character, which it leaves lying about
			}
			line = append(line, c)
		}
		p.lines = append(p.lines, line)
	}
	return p.String()
}

func (v *shown) modes() Modes {
	return Modes{
		AltScreen: v.Alternate, AppCursor: v.AppCursor, AppKeypad: v.AppKeypad, AutoWrap: v.AutoWrap, BracketedPaste: v.Paste,
		CursorVisible: v.Visible, FocusEvents: v.Focus, Insert: v.Insert, Origin: v.Origin, Synchronized: v.Synchronized,
		Mouse:         map[string]Mouse{"x10": MouseX10, "vt200": MouseNormal, "drag": MouseButton, "any": MouseAny}[v.Mouse],
		MouseEncoding: map[string]MouseEncoding{"SGR": MouseSGR}[v.Encoding],
	}
}

// visible is text without the runes that our screen does not keep: xterm.js and tmux have directions in their cells, and a person would be
// shown text in another order than it has.
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

// pictureOf is all that is compared of two terminals.
type pictureOf struct {
	cols, rows, top, bottom int
	cursor                  Cursor
	pending                 bool // the next character wraps first
	modes                   Modes
	lines                   [][]Cell
}

// String is text that a person can compare.
func (p pictureOf) String() string {
	var b strings.Builder
	p.modes.CursorBlink = false
	fmt.Fprintf(&b, "%d by %d, cursor at %d,%d pending %t, region %d to %d, modes %+v\n",
		p.cols, p.rows, p.cursor.X, p.cursor.Y, p.pending, p.top, p.bottom, p.modes)
	for _, line := range p.lines {
		line = slices.Clone(line)
		for i, c := range line {
			if c.Style.Underline == NoUnderline {
				line[i].Style.UnderlineColor = 0 // nobody sees it
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
				b.WriteString("→") // not the second column, so that an unpaired one shows
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}

// picture is what s shows.
func picture(s *Screen) string {
	p := pictureOf{cols: s.cols, rows: s.rows, top: s.g.top, bottom: s.g.bottom, modes: s.Modes(), cursor: s.Cursor(), pending: s.x >= s.cols}
	for y := range s.rows {
		p.lines = append(p.lines, s.Line(y))
	}
	return p.String()
}

// What xterm.js shows of a random program is what we show: cells, cursor, margins and modes.
func TestAgainstXterm(t *testing.T) {
	x := startXterm(t)
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
		x.order('n', cols, rows, "")
		x.order('w', 0, 0, in)
		if want, got := x.show(), picture(s); got != want {
			t.Errorf("stream %d: %q\nxterm.js: %s\nours: %s", seed, in, want, got)
			if fails++; fails == 3 {
				break
			}
		}
	}
}

// The alternate screen is cut as that of xterm.js, whatever was drawn. There columns that were cut off stay, out of sight: the screen becomes
// narrower but once, at the end, and never grows. The primary screen is that of tmux: TestResizeAgainstTmux.
func TestResizeAgainstXterm(t *testing.T) {
	x := startXterm(t)
	n := 200
	if testing.Short() {
		n = 50
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 22))
		cols, rows := 12+r.IntN(30), 6+r.IntN(8)
		s := New(Options{Cols: cols, Rows: rows})
		x.order('n', cols, rows, "")
		var steps []string
		write := func(in string) {
			steps = append(steps, fmt.Sprintf("%q", in))
			s.Write([]byte(in))
			x.order('w', 0, 0, in)
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
			x.order('r', cols, rows, "")
			check(t, s)
			if want, got := x.show(), picture(s); got != want {
				t.Fatalf("stream %d: %s\nxterm.js: %s\nours: %s", seed, strings.Join(steps, ", "), want, got)
			}
		}
	}
}

// What xterm.js shows of real programs, at every tenth of the way, is what we show. How they were recorded is in testdata/recorded/README.md.
func TestRecordedAgainstXterm(t *testing.T) {
	x := startXterm(t)
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
		x.order('n', 80, 24, "")
		for part := range 10 {
			p := in[len(in)*part/10 : len(in)*(part+1)/10]
			s.Write(p)
			x.order('w', 0, 0, string(p))
			if want, got := x.show(), picture(s); got != want {
				t.Fatalf("%s, part %d\nxterm.js: %s\nours: %s", file, part, want, got)
			}
		}
	}
	t.Logf("%d recordings", len(files))
}
