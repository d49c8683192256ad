package view

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// terminal is a person's terminal in a test: a screen model that obeys a Renderer.
type terminal struct {
	*screen.Screen
	t *testing.T
}

func newTerminal(t *testing.T, cols, rows int) terminal {
	return terminal{screen.New(screen.Options{Cols: cols, Rows: rows, Reply: func(p []byte) {
		t.Errorf("the renderer asked the person's terminal for %q", p)
	}}), t}
}

func (term terminal) feed(p []byte) {
	term.t.Helper()
	if err := allowed(p); err != nil {
		term.t.Fatalf("%v in %q", err, p)
	}
	term.Write(p)
}

// wantCells returns row y of the window according to the program's screen.
func wantCells(r *Renderer, s *screen.Screen, y int) []screen.Cell {
	cols, _ := r.Area()
	x0, y0 := r.Offset()
	line := s.Line(y + y0)
	want := make([]screen.Cell, cols)
	for x := range want {
		want[x] = screen.Cell{Text: " ", Width: 1}
		if x+x0 < len(line) {
			want[x] = line[x+x0]
		}
	}
	if first := &want[0]; first.Width == 0 {
		*first = screen.Cell{Text: " ", Width: 1, Style: first.Style}
	}
	if last := &want[cols-1]; last.Width == 2 {
		*last = screen.Cell{Text: " ", Width: 1, Style: last.Style}
	}
	return want
}

// verify fails if the terminal does not show f.
func (term terminal) verify(r *Renderer, f Frame) {
	term.t.Helper()
	_, rows := r.Area()
	for y := range rows {
		if want, got := wantCells(r, f.Screen, y), term.Line(y); !slices.Equal(want, got) {
			term.t.Fatalf("row %d (-want +got):\n%s\nterminal:\n%s\nprogram:\n%s", y,
				cmp.Diff(want, got), term.Text(), f.Screen.Text())
		}
	}
	x0, y0 := r.Offset()
	want, got := f.Screen.Cursor(), term.Cursor()
	want.X, want.Y = want.X-x0, want.Y-y0
	if !want.Visible {
		want.X, want.Y = got.X, got.Y
	}
	if want != got {
		term.t.Fatalf("cursor %+v, want %+v", got, want)
	}
	if m := term.Modes(); m.AutoWrap || !m.BracketedPaste ||
		m.AltScreen != f.Screen.Modes().AltScreen {
		term.t.Fatalf(
			"modes %+v: wrapping is on, pastes have no brackets, or it is the other screen", m)
	}
	modes := screen.Modes{}
	if f.Driver {
		modes = inputModes(f.Screen.Modes())
	}
	if got := inputModes(term.Modes()); got != modes {
		term.t.Fatalf("input modes %+v, want %+v", got, modes)
	}
}

// inputModes returns those of m that a driver's terminal gets.
func inputModes(m screen.Modes) screen.Modes {
	return screen.Modes{
		AppCursor: m.AppCursor, AppKeypad: m.AppKeypad, FocusEvents: m.FocusEvents,
		Mouse: m.Mouse, MouseEncoding: m.MouseEncoding,
	}
}

// For any stream, any points at which people look, and any window size, the terminal shows the
// program's screen, also for a person who joins in the middle.
func TestDrawEqualsScreen(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		cols, rows := 2+r.IntN(40), 1+r.IntN(12)
		s := screen.New(screen.Options{Cols: cols, Rows: rows})
		wc, wr := cols, rows+1
		if seed%3 == 0 { // a window of another size
			wc, wr = 1+r.IntN(50), 1+r.IntN(15)
		}
		early, earlyTerm := NewRenderer(wc, wr), newTerminal(t, wc, wr)
		earlyTerm.feed(early.Enter())
		for step := range 12 {
			s.Write([]byte(stream(r, 1+r.IntN(30), cols, rows)))
			if seed%5 == 0 && step%4 == 3 {
				s.Resize(2+r.IntN(40), 1+r.IntN(12))
			}
			if seed%7 == 0 && step%4 == 2 {
				wc, wr = 1+r.IntN(50), 1+r.IntN(15)
				early.Resize(wc, wr)
				earlyTerm.Resize(wc, wr)
			}
			f := Frame{Screen: s, Status: fmt.Sprintf("step %d", step%3), Driver: r.IntN(2) == 0}
			earlyTerm.feed(early.Draw(f))
			earlyTerm.verify(early, f)
			if again := early.Draw(f); len(again) != 0 {
				t.Fatalf("drawing the same frame again wrote %q", again)
			}
			if wr > 1 && wc > 10 {
				if got := earlyTerm.LineText(wr - 1); got != f.Status {
					t.Fatalf("status line %q, want %q", got, f.Status)
				}
			}

			late, lateTerm := NewRenderer(wc, wr), newTerminal(t, wc, wr)
			lateTerm.Write([]byte("what was there before"))
			lateTerm.feed(late.Enter())
			lateTerm.feed(late.Draw(f))
			lateTerm.verify(late, f)
		}
	}
}

func TestLeaveRestores(t *testing.T) {
	term := newTerminal(t, 40, 10)
	term.Write([]byte("$ ssh demo@gw\r\n"))
	before, cursor, modes := term.Text(), term.Cursor(), term.Modes()

	s := screen.New(screen.Options{Cols: 40, Rows: 9})
	s.Write(
		[]byte(
			"\x1b[?1049h\x1b[?1003;1006;2004;1004;1h\x1b=\x1b[?25l\x1b[3 " +
				"q\x1b[2;4r\x1b[41mhello\x1b[4;10H\n\n\n"))
	r := NewRenderer(40, 10)
	term.feed(r.Enter())
	term.feed(r.Draw(Frame{Screen: s, Status: "watching", Driver: true}))
	if got := inputModes(term.Modes()); got != inputModes(s.Modes()) {
		t.Fatalf("the driver has %+v, want %+v", got, inputModes(s.Modes()))
	}
	term.feed(r.Leave())
	if got := term.Text(); got != before {
		t.Errorf("after leaving the terminal shows %q, want %q", got, before)
	}
	if got := term.Cursor(); got != cursor {
		t.Errorf("cursor %+v, want %+v", got, cursor)
	}
	if got := term.Modes(); got != modes {
		t.Errorf("modes %+v, want %+v", got, modes)
	}
	term.Write([]byte("x"))
	if got := term.Line(cursor.Y)[cursor.X].Style; got != (screen.Style{}) {
		t.Errorf("the colours stayed: %+v", got)
	}
	if got := r.Draw(Frame{Screen: s}); got != nil {
		t.Errorf("Draw after Leave wrote %q", got)
	}
	if got := r.Leave(); got != nil {
		t.Errorf("leaving twice wrote %q", got)
	}

	// Entering again draws everything.
	term.feed(r.Enter())
	f := Frame{Screen: s}
	term.feed(r.Draw(f))
	term.verify(r, f)
}

// A person who leaves while the program is on its main screen gets the modes and the cursor of a
// shell, below the drawn content. Repeated visits erase nothing above.
func TestLeaveMain(t *testing.T) {
	m := &model{t: t}
	m.start(40, 10)
	m.feed([]byte("$ ssh demo@gw\r\n"))
	modes := m.Modes()
	s := screen.New(screen.Options{Cols: 40, Rows: 9, Scrollback: 10})
	s.Write(
		[]byte(
			"\x1b[?1003;1006;2004;1004;1h\x1b=\x1b[?25l\x1b[3 " +
				"q\x1b[2;4r\x1b[1;41mhello\x1b[4;10Hworld"))
	r := NewRenderer(40, 10)
	for i := range 3 {
		m.feed(r.Enter())
		f := Frame{Screen: s, Status: "watching", Driver: true}
		m.feed(r.Draw(f))
		m.verify(r, f)
		m.feed(r.Leave())
		if got := m.Modes(); got != modes {
			t.Errorf("modes %+v, want %+v", got, modes)
		}
		if c := m.Cursor(); c != (screen.Cursor{X: 0, Y: 4, Visible: true}) {
			t.Errorf("cursor %+v, want it in row 4", c)
		}
		m.feed([]byte(fmt.Sprintf("detached %d\r\n$ ", i)))
		if got := m.Line(4)[0].Style; got != (screen.Style{}) {
			t.Errorf("the colours stayed: %+v", got)
		}
	}
	all := strings.Join(everything(m.look()), "|")
	if strings.Count(all, "detached") != 3 || strings.Count(all, "hello") != 3 {
		t.Errorf("a person reads %q", all)
	}
	if got := m.look().above[0]; got != "$ ssh demo@gw" {
		t.Errorf("the earlier content is %q", got)
	}
}

// The program cannot change the status line, and its text there has no effect.
func TestStatusLine(t *testing.T) {
	s := screen.New(screen.Options{Cols: 20, Rows: 9})
	s.Write([]byte("\x1b[?7h\x1b[99;1H" + strings.Repeat("[sandboxd] a person took over ", 9) +
		"\x1b[99B\x1b[999Cx\x1b[9S"))
	tests := []struct{ status, want string }{
		{"agent:alice drives", "agent:alice drives"},
		{"", ""},
		{"a\x1b[31mb\r\nc\u202ed\u009be\x00\x7f\xff", "a[31mbc<U+202E>de"},
		{"世界 é", "世界 é"},
		{"a status longer than the window", "a status longer tha…"},
		{"123456789012345678世界", "123456789012345678 …"},
		{"12345678901234567世界", "12345678901234567世…"},
	}
	r, term := NewRenderer(20, 6), newTerminal(t, 20, 6)
	term.feed(r.Enter())
	for _, tt := range tests {
		term.feed(r.Draw(Frame{Screen: s, Status: tt.status}))
		if got := term.LineText(5); got != tt.want {
			t.Errorf("status %q shown as %q, want %q", tt.status, got, tt.want)
		}
		for x, c := range term.Line(5) {
			if c.Style != (screen.Style{Attr: screen.Inverse}) {
				t.Fatalf("status %q: column %d has %+v", tt.status, x, c.Style)
			}
		}
	}
}

// The status line shows the first form that fits; if none fits, the beginning of the last.
func TestStatusLineBrief(t *testing.T) {
	f := Frame{Screen: screen.New(screen.Options{Cols: 20, Rows: 4}),
		Status: " demo~main   agent:alice typing",
		Brief:  []string{" agent:alice typing", " agent:alice"}}
	for _, tt := range []struct {
		cols int
		want string
	}{
		{80, f.Status}, {31, f.Status}, {30, f.Brief[0]}, {20, f.Brief[0]}, {19, f.Brief[0]}, {18, f.Brief[1]}, {12, f.Brief[1]}, {11, " agent:ali…"}, {1, "…"},
	} {
		r, term := NewRenderer(tt.cols, 5), newTerminal(t, tt.cols, 5)
		term.feed(r.Enter())
		term.feed(r.Draw(f))
		if got := term.LineText(4); got != tt.want {
			t.Errorf("%d columns: %q, want %q", tt.cols, got, tt.want)
		}
		if again := r.Draw(f); len(again) > 0 {
			t.Errorf("%d columns: drawn again: %q", tt.cols, again)
		}
		g := f
		g.Brief = []string{"other"}
		term.feed(r.Draw(g))
		if got := term.LineText(4); tt.cols < 31 && tt.cols > 5 && got != "other" {
			t.Errorf("%d columns: another form is shown as %q", tt.cols, got)
		}
	}
}

func TestSizes(t *testing.T) {
	s := screen.New(screen.Options{Cols: 30, Rows: 5})
	s.Write([]byte("世界 hello"))
	for _, size := range [][2]int{{0, 0}, {-1, -1}, {1, 1}, {1, 2}, {2, 1}, {1 << 30, 1 << 30},
		{1 << 32, 1 << 32}, {80, 3}, {3, 80}} {
		r := NewRenderer(size[0], size[1])
		term := newTerminal(t, r.cols, r.rows)
		term.feed(r.Enter())
		f := Frame{Screen: s, Status: "世界"}
		term.feed(r.Draw(f))
		term.verify(r, f)
		term.feed(r.Leave())
	}
	r := NewRenderer(80, 24)
	if c, h := r.Area(); c != 80 || h != 23 {
		t.Errorf("Area of 80 by 24 is %d by %d", c, h)
	}
	if r.Clipped(s) || !NewRenderer(29, 24).Clipped(s) || !NewRenderer(80, 5).Clipped(s) {
		t.Error("Clipped is wrong")
	}
}

// A different screen, or none, replaces the previous one.
func TestOtherScreen(t *testing.T) {
	r, term := NewRenderer(20, 6), newTerminal(t, 20, 6)
	term.feed(r.Enter())
	for i := range 3 {
		s := screen.New(screen.Options{Cols: 20, Rows: 5})
		fmt.Fprintf(s, "screen %d", i)
		f := Frame{Screen: s, Driver: true}
		term.feed(r.Draw(f))
		term.verify(r, f)
	}
	term.feed(r.Draw(Frame{Status: "gone"}))
	if got, want := term.Text(), "\n\n\n\n\ngone"; got != want {
		t.Errorf("without a screen %q, want %q", got, want)
	}
}

// Small changes cost few bytes.
func TestDrawIsSmall(t *testing.T) {
	const cols, rows = 80, 24
	s := screen.New(screen.Options{Cols: cols, Rows: rows, Scrollback: 10})
	for y := range rows - 1 {
		fmt.Fprintf(s, "%s line %d\r\n", strings.Repeat("word ", 12), y)
	}
	tests := []struct {
		name, in string
		limit    int
	}{
		{"nothing", "", 0},
		{"a key", "x", 4},
		{"another", "y", 1},
		{"backspace", "\b \b", 12},
		{"a line", "\rxx" + strings.Repeat("z", 60) + "\r\n", 120},
		{"scrolling by three", "a\r\nb\r\nc\r\n", 60},
		{"scrolling back", "\x1b[H\x1bMtop\x1b[24H", 60},
		{"deleting a line in the middle", "\x1b[10H\x1b[M\x1b[24H", 60},
		{"erasing a line", "\x1b[5H\x1b[2K\x1b[24H", 40},
		{"colour", "\x1b[1;31mred\x1b[m", 30},
		{"words on a line that was empty", "\x1b[5H" + strings.Repeat("w ", 30) + "\x1b[24H", 75},
	}
	r, term := NewRenderer(cols, rows+1), newTerminal(t, cols, rows+1)
	term.feed(r.Enter())
	f := Frame{Screen: s, Status: "status"}
	term.feed(r.Draw(f))
	for _, tt := range tests {
		s.Write([]byte(tt.in))
		out := r.Draw(f)
		if len(out) > tt.limit {
			t.Errorf("%s: %d bytes, want at most %d: %q", tt.name, len(out), tt.limit, out)
		}
		term.feed(out)
		term.verify(r, f)
	}
}

func benchmarkDraw(b *testing.B, change string) {
	const cols, rows = 200, 50
	s := screen.New(screen.Options{Cols: cols, Rows: rows})
	r := NewRenderer(cols, rows+1)
	r.Enter()
	for range rows {
		s.Write([]byte(strings.Repeat("the quick brown fox ", 8) + "\r\n"))
	}
	f := Frame{Screen: s, Status: "status"}
	r.Draw(f)
	b.ReportAllocs()
	for b.Loop() {
		s.Write([]byte(change))
		r.Draw(f)
	}
}

func BenchmarkDrawNothing(b *testing.B) { benchmarkDraw(b, "") }
func BenchmarkDrawKey(b *testing.B)     { benchmarkDraw(b, "x\b") }
func BenchmarkDrawLine(b *testing.B)    { benchmarkDraw(b, "a line of output\r\n") }
func BenchmarkDrawScreen(b *testing.B) {
	benchmarkDraw(b, "\x1b[H"+strings.Repeat(
		strings.Repeat("one two three four five six seven ", 5)+"\r\n", 50)+
		"\x1b[H"+strings.Repeat(strings.Repeat("eins zwei drei ", 10)+"\r\n", 50))
}

// BenchmarkDrawFlood is a second of a watcher of a program that prints without end: 26 frames, one
// of them with as many lines for the scrollback as the screen keeps.
func BenchmarkDrawFlood(b *testing.B) {
	s := screen.New(screen.Options{Cols: 200, Rows: 50, Scrollback: 1000})
	r := NewRenderer(80, 24)
	r.Enter()
	flood := bytes.Repeat([]byte(strings.Repeat("0123456789", 8)+"\r\n"), 1000)
	b.ReportAllocs()
	for b.Loop() {
		for i := range 26 {
			b.StopTimer()
			s.Write(flood)
			b.StartTimer()
			r.Draw(Frame{Screen: s, Status: "demo", Hold: i > 0})
		}
	}
}

// A window that is panned shows that part of the screen, without the cursor, until it follows the
// cursor again. It stays on the screen, whatever its size.
func TestPan(t *testing.T) {
	s := screen.New(screen.Options{Cols: 40, Rows: 20})
	for y := range 20 {
		for x := range 4 {
			fmt.Fprintf(s, "\x1b[%d;%dHr%02dc%d", y+1, 10*x+1, y, x)
		}
	}
	s.Write([]byte("\x1b[20;40H"))
	r, term := NewRenderer(20, 11), newTerminal(t, 20, 11)
	term.feed(r.Enter())
	for _, tt := range []struct {
		x, y int // 0, 0 follows
		want string
	}{
		{0, 0, "r10c2 r10c3"}, {-1, 0, "r10c1 r10c2"}, {-1, 0, "r10c0 r10c1"}, {-1, 0, "r10c0 r10c1"},
		{0, -1, "r05c0 r05c1"}, {0, -1, "r00c0 r00c1"}, {0, -1, "r00c0 r00c1"},
		{1, 1, "r05c1 r05c2"}, {0, 0, "r10c2 r10c3"},
	} {
		if tt.x == 0 && tt.y == 0 {
			r.Follow()
		} else {
			r.Pan(tt.x, tt.y)
		}
		term.feed(r.Draw(Frame{Screen: s, Status: "status"}))
		if got := strings.Join(strings.Fields(term.LineText(0)), " "); got != tt.want {
			t.Errorf("after %d,%d the first row is %q, want %q", tt.x, tt.y, got, tt.want)
		}
		if seen := term.Cursor().Visible; seen != (tt.x == 0 && tt.y == 0) {
			t.Errorf("after %d,%d the cursor is seen: %v", tt.x, tt.y, seen)
		}
	}
	r.Pan(1, 1)
	s.Resize(10, 5)
	term.feed(r.Draw(Frame{Screen: s, Status: "status"}))
	if x, y := r.Offset(); x != 0 || y != 0 {
		t.Errorf("a small screen is shown from %d,%d", x, y)
	}
}
