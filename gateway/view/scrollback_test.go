package view

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// everything returns all that a person can read, from below the row in which they joined to the
// last non-empty row, without the status line.
func everything(l look) []string {
	all := append(slices.Clone(l.above), l.rows[:len(l.rows)-1]...)[1:]
	for len(all) > 0 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// A window that is lower than the session's screen has every line above it, once and in order, also
// those that are on the session's screen but not in the window.
func TestScrollbackOfClippedWindow(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := screen.New(screen.Options{Cols: 30, Rows: 20, Scrollback: 1000})
		printed := 0
		program := func(n int) {
			for range n {
				fmt.Fprintf(s, "line %d\r\n", printed)
				printed++
			}
			if r.IntN(3) == 0 {
				s.Write([]byte("\x1b[?1049hvim\x1b[?1049l"))
			}
		}
		program(r.IntN(60))
		to := &model{t: t}
		to.start(30, 9)
		v := NewRenderer(30, 9)
		to.feed(v.Enter())
		first := int(s.Scrolled())
		for range 12 {
			if r.IntN(4) == 0 {
				s.Write([]byte("\x1b[?1049h"))
				to.feed(v.Draw(Frame{Screen: s}))
				s.Write([]byte("\x1b[?1049l"))
			}
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
			var want []string
			for n := first; n < printed; n++ {
				want = append(want, fmt.Sprintf("line %d", n))
			}
			if got := everything(to.look()); !slices.Equal(got, want) {
				t.Fatalf("stream %d: a person reads\n%q\nwant\n%q", seed, got, want)
			}
			program(r.IntN(40) * r.IntN(2))
		}
	}
}

// Held lines come once and in order after the hold; until then the window shows the same as
// without. Few lines are not held, unless earlier ones are.
func TestScrollbackThatIsHeld(t *testing.T) {
	var held, sent int
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 8))
		s := screen.New(screen.Options{Cols: 30, Rows: 5 + r.IntN(12), Scrollback: 1000})
		to := &model{t: t}
		to.start(30, 9)
		v := NewRenderer(30, 9)
		to.feed(v.Enter())
		to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
		printed, waiting := 0, 0
		for range 30 {
			n := r.IntN(8)
			if r.IntN(3) == 0 {
				n = r.IntN(40)
			}
			for range n {
				fmt.Fprintf(s, "line %d\r\n", printed)
				printed++
			}
			waiting += n
			hold := r.IntN(3) > 0
			to.feed(v.Draw(Frame{Screen: s, Status: "status", Hold: hold}))
			if v.Held() {
				held++
				if _, rows := v.Area(); !hold || waiting <= rows {
					t.Fatalf("stream %d: of %d lines some are held, with hold %v", seed, waiting,
						hold)
				}
				to.verify(v, Frame{Screen: s, Status: "status", Hold: true})
				continue
			}
			sent++
			waiting = 0
			var want []string
			for n := range printed {
				want = append(want, fmt.Sprintf("line %d", n))
			}
			if got := everything(to.look()); !slices.Equal(got, want) {
				t.Fatalf("stream %d: a person reads\n%q\nwant\n%q", seed, got, want)
			}
		}
	}
	if held < 100 || sent < 100 {
		t.Errorf("%d frames held lines, %d did not", held, sent)
	}
}

// A line above a clipped window that is changed and leaves again is there again; an unchanged one
// is not.
func TestScrollbackOfChangedLines(t *testing.T) {
	s := screen.New(screen.Options{Cols: 20, Rows: 10, Scrollback: 100})
	to := &model{t: t}
	to.start(20, 5)
	v := NewRenderer(20, 5)
	to.feed(v.Enter())
	for _, tt := range []struct{ in, want string }{
		{"a\r\nb\r\nc\r\nd\r\ne\r\nf", "a b c d e f"},
		{"\x1b[H", "a b a b c d"},  // the window follows the cursor up,
		{"\x1b[6H", "a b c d e f"}, // and down again
		// The old b is in the scrollback already.
		{"\x1b[2HB\x1b[6H", "a b B c d e f"},
		{"\x1b[H\x1b[J1\r\n2\r\n3\r\n4\r\n5", "a b B 1 2 3 4 5"}, // a cleared screen begins anew
	} {
		for _, p := range strings.SplitAfter(tt.in, "\n") {
			s.Write([]byte(p))
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
		}
		if got := strings.Join(everything(to.look()), " "); got != tt.want {
			t.Errorf("after %q a person reads %q, want %q", tt.in, got, tt.want)
		}
	}
}

// A clipped window that follows the cursor back shows what was printed since the screen was
// cleared, and not only the line of the cursor.
func TestClippedWindowShowsTheBeginning(t *testing.T) {
	s := screen.New(screen.Options{Cols: 40, Rows: 10})
	to := &model{t: t}
	to.start(20, 5)
	v := NewRenderer(20, 5)
	to.feed(v.Enter())
	for _, in := range []string{"\x1b[10;35Hx", "\x1b[H\x1b[2Jone\r\ntwo\r\nprompt> "} {
		s.Write([]byte(in))
		to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
	}
	if got := to.look().rows[:3]; !slices.Equal(got, []string{"one", "two", "prompt>"}) {
		t.Errorf("a person reads %q", got)
	}
}

// A person who lags gets the present screen, below the last lines before it and a notice of how
// many are missing.
func TestScrollbackOfLaggard(t *testing.T) {
	for _, tt := range []struct {
		name      string
		kept      int
		lines     int
		line      string
		missing   string
		most      int // bytes
		remaining int // lines of it above the window
	}{
		{"all are there", 2000, 900, "line", "", 20 << 10, 892},
		{"too many", 2000, 5000, "line", "[3991 lines not shown]", 20 << 10, 1000},
		{"fewer kept", 10, 5000, "line", "[4981 lines not shown]", 20 << 10, 10},
		{"none kept", 0, 500, "line", "[491 lines not shown]", 20 << 10, 0},
		{"dear lines", 2000, 900, strings.Repeat("\x1b[38;2;1;2;3;48;2;4;5;6mx\x1b[38;2;6;5;4;48;2;3;2;1my", 40), "lines not shown]", 300 << 10, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := screen.New(screen.Options{Cols: 80, Rows: 10, Scrollback: tt.kept})
			to := &model{t: t}
			to.start(80, 11)
			v := NewRenderer(80, 11)
			to.feed(v.Enter())
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
			s.Write([]byte(strings.Repeat(tt.line+"\r\n", tt.lines)))
			out := v.Draw(Frame{Screen: s, Status: "status"})
			to.feed(out)
			if len(out) > tt.most {
				t.Errorf("the frame has %d bytes, want at most %d", len(out), tt.most)
			}
			to.verify(v, Frame{Screen: s, Status: "status"})
			l := to.look()
			at := slices.IndexFunc(l.above, func(line string) bool {
				return strings.Contains(line, tt.missing) && strings.Contains(line, "not shown")
			})
			if (tt.missing != "") != (at >= 0) {
				t.Fatalf("above the window is %q", l.above)
			}
			if got := len(l.above) - at - 1; tt.remaining >= 0 && got != tt.remaining {
				t.Errorf("%d lines follow, want %d", got, tt.remaining)
			}
			if again := v.Draw(Frame{Screen: s, Status: "status"}); len(again) > 0 {
				t.Errorf("drawn again as %q", again)
			}
			if cap(v.out) > maxKept {
				t.Errorf("%d bytes of the frame are kept", cap(v.out))
			}
		})
	}
}

// A different screen replaces the previous one in place; missing lines are reported, except after
// Anew.
func TestScrollbackOfOtherScreen(t *testing.T) {
	for _, anew := range []bool{false, true} {
		to := &model{t: t}
		to.start(20, 5)
		v := NewRenderer(20, 5)
		to.feed(v.Enter())
		for i := range 3 {
			s := screen.New(screen.Options{Cols: 20, Rows: 8, Scrollback: 100})
			fmt.Fprintf(s, "screen %d\r\n\n\n\n\n\n\n\n\n\n\n", i)
			if anew {
				v.Anew()
			}
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
			to.verify(v, Frame{Screen: s})
		}
		notices := 0
		for _, line := range to.look().above {
			if strings.Contains(line, "[lines not shown]") {
				notices++
			}
		}
		if want := map[bool]int{false: 2, true: 0}[anew]; notices != want {
			t.Errorf("anew %t: %d notices, want %d", anew, notices, want)
		}
	}
}

// Rows that a program keeps below its scroll region do not flicker: they are not redrawn while the
// others scroll.
func TestScrollAboveFixedRows(t *testing.T) {
	s := screen.New(screen.Options{Cols: 80, Rows: 20, Scrollback: 100})
	to := &model{t: t}
	to.start(80, 21)
	v := NewRenderer(80, 21)
	to.feed(v.Enter())
	s.Write([]byte("\x1b[20HProgress: [ 40%] [####......]\x1b[1;19r\x1b[19H"))
	for i := range 30 {
		fmt.Fprintf(s, "line %d\r\n", i)
		f := Frame{Screen: s, Status: "status"}
		out := v.Draw(f)
		to.feed(out)
		to.verify(v, f)
		if i > 0 && bytes.Contains(out, []byte("Progress")) {
			t.Fatalf("line %d drew %q", i, out)
		}
	}
	if got := len(to.look().above); got != 30 {
		t.Errorf("%d lines are above the window, want 30", got)
	}
}

// A window that changes its size loses no line. Some may be there twice, because the terminal
// decides what it does with them.
func TestScrollbackAndResize(t *testing.T) {
	for _, to := range []seat{&model{t: t}, startXterm(t), &pane{t: t}} {
		for seed := range uint64(5) {
			r := rand.New(rand.NewPCG(seed, 8))
			s := screen.New(screen.Options{Cols: 30, Rows: 12, Scrollback: 1000})
			to.start(30, 13)
			v := NewRenderer(30, 13)
			to.feed(v.Enter())
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
			printed := 0
			for range 8 {
				for range r.IntN(15) {
					fmt.Fprintf(s, "line %d\r\n", printed)
					printed++
				}
				cols, rows := 12+r.IntN(30), 3+r.IntN(25)
				to.resize(cols, rows)
				v.Resize(cols, rows)
				if r.IntN(2) == 0 { // of a driver
					s.Resize(v.Area())
				}
				to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
				_, area := v.Area()
				_, y0 := v.Offset()
				l := to.look()
				for y := range area {
					if want := describe(wantCells(v, s, y)); l.rows[y] != want {
						t.Fatalf("%T, stream %d: row %d from %d is %q, want %q", to, seed, y, y0,
							l.rows[y], want)
					}
				}
				all := everything(l)
				for n := range printed {
					if want := fmt.Sprintf("line %d", n); !slices.Contains(all, want) {
						t.Fatalf("%T, stream %d: after %d×%d %s is lost:\n%q", to, seed, cols, rows,
							want, all)
					}
				}
			}
			to.feed(v.Leave())
		}
	}
}

// A person who leaves from the alternate screen of a window that has changed gets the prompt in an
// empty row at the end.
func TestLeaveAfterResize(t *testing.T) {
	for _, to := range []seat{&model{t: t}, startXterm(t), &pane{t: t}} {
		for _, size := range [][2]int{{30, 13}, {30, 6}, {30, 25}, {11, 13}, {50, 20}, {9, 5}} {
			s := screen.New(screen.Options{Cols: 30, Rows: 12, Scrollback: 1000})
			for i := range 20 {
				fmt.Fprintf(s, "line %d of some length\r\n", i)
			}
			to.start(30, 13)
			v := NewRenderer(30, 13)
			to.feed(v.Enter())
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
			s.Write([]byte("\x1b[?1049hvim"))
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
			to.resize(size[0], size[1])
			v.Resize(size[0], size[1])
			to.feed(v.Draw(Frame{Screen: s, Status: "status"}))
			to.feed(v.Leave())
			to.feed([]byte("$"))
			l := to.look()
			y := slices.Index(l.rows, "$")
			if y < 0 {
				t.Fatalf("%T, %v: the prompt is in no row of its own: %q", to, size,
					l.rows[:size[1]])
			}
			for _, line := range l.rows[y+1:] {
				if line != "" {
					t.Errorf("%T, %v: below the prompt is %q", to, size, line)
				}
			}
		}
	}
}

// A watcher costs 40 KB and eight bytes for each cell of the window, for any content.
func TestMemory(t *testing.T) {
	const cols, rows, watchers = 200, 50, 40
	const most = 40<<10 + 8*cols*(rows+1)
	s := screen.New(screen.Options{Cols: cols, Rows: rows, Scrollback: 1000})
	var b bytes.Buffer
	for i := range 100 * cols {
		fmt.Fprintf(&b, "\x1b[38;2;%d;%d;%dm%c", i%256, i/256, i%7, 'a'+i%26)
		if i%9 == 0 {
			b.WriteString("\u0301")
		}
	}
	all := make([]*Renderer, watchers)
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	draw := func() {
		for i, r := range all {
			if r == nil {
				r = NewRenderer(cols, rows+1)
				r.Enter()
				all[i] = r
			}
			r.Draw(Frame{Screen: s, Status: "status", Brief: []string{"s"}, Driver: true})
		}
	}
	before := heap()
	draw()
	s.Write(b.Bytes())
	draw()
	s.Write([]byte("\x1b[?1049h"))
	s.Write(b.Bytes())
	draw()
	each := (heap() - before) / watchers
	t.Logf("%d bytes a watcher at %d×%d", each, cols, rows)
	if each > most {
		t.Errorf("a watcher costs %d bytes, want at most %d", each, most)
	}
	s.Write([]byte("\x1bc\r\nx"))
	draw()
	if n := testing.AllocsPerRun(50, func() {
		s.Write([]byte("a line of output\r\n"))
		all[0].Draw(Frame{Screen: s, Status: "status", Brief: []string{"s"}, Driver: true})
	}); n > 10 {
		t.Errorf("a line costs %v allocations", n)
	}
	runtime.KeepAlive(all)
}

// A person who joins has the last lines before that, once and in order, up to History, and no
// sequence of a program in them.
func TestHistory(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := screen.New(screen.Options{Cols: 30, Rows: 4 + r.IntN(20), Scrollback: 50})
		printed := 0
		program := func(n int) {
			for range n {
				fmt.Fprintf(s, "line %d\x1b]0;title\a\x1b[6n\r\n", printed)
				printed++
			}
		}
		program(r.IntN(120))
		if r.IntN(3) == 0 {
			s.Write([]byte("\x1b[?1049hvim"))
		}
		to := &model{t: t}
		to.start(30, 9)
		v := NewRenderer(30, 9)
		v.History = []int{0, 7, 1000}[r.IntN(3)]
		to.feed(v.Enter())
		first := -1
		draw := func() {
			onMain := !s.Modes().AltScreen
			if onMain && first < 0 {
				_, rows := s.Size()
				above := max(0, printed+1-min(rows, 8)) // the last row is empty
				scrolled := max(0, printed+1-rows)
				first = min(scrolled, max(0, scrolled-50, above-v.History))
			}
			out := v.Draw(Frame{Screen: s, Status: "status"})
			if strings.Contains(string(out), "title") || strings.Contains(string(out), "[6n") {
				t.Fatalf("stream %d: %q has the program's sequences", seed, out)
			}
			to.feed(out)
		}
		if draw(); s.Modes().AltScreen {
			s.Write([]byte("\x1b[?1049l"))
		}
		for range 4 {
			draw()
			var want []string
			for n := first; n < printed; n++ {
				want = append(want, fmt.Sprintf("line %d", n))
			}
			if got := everything(to.look()); !slices.Equal(got, want) {
				t.Fatalf("stream %d, history %d: a person reads\n%q\nwant\n%q", seed, v.History,
					got, want)
			}
			program(r.IntN(20))
		}
	}
}
