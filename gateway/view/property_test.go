package view

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// seat is a person's terminal, of which there are several kinds.
type seat interface {
	start(cols, rows int)
	resize(cols, rows int)
	feed(p []byte)
	look() look
}

// look is the visible content of a person's terminal, with its scrollback.
type look struct {
	rows, above      []string
	x, y             int
	visible          bool
	alternate, wraps bool
}

// model is a person's terminal that is a screen of ours.
type model struct {
	t *testing.T
	terminal
}

func (m *model) start(cols, rows int) {
	m.terminal = terminal{screen.New(screen.Options{Cols: cols, Rows: rows, Scrollback: 20000,
		Reply: func(p []byte) {
			m.t.Errorf("the renderer asked the person's terminal for %q", p)
		}}), m.t}
}

func (m *model) resize(cols, rows int) { m.Screen.Resize(cols, rows) }

func (m *model) look() (l look) {
	_, rows := m.Size()
	for y := range rows {
		l.rows = append(l.rows, describe(m.Line(y)))
	}
	c, modes := m.Cursor(), m.Modes()
	l.x, l.y, l.visible, l.alternate, l.wraps = c.X, c.Y, c.Visible, modes.AltScreen, modes.AutoWrap
	if !l.alternate {
		for n := m.Kept(); n < m.Scrolled(); n++ {
			l.above = append(l.above, describe(m.AppendKept(nil, n)))
		}
	}
	return l
}

// watch is a person who joins s and looks from time to time.
type watch struct {
	t      *testing.T
	r      *Renderer
	s      *screen.Screen
	to     seat
	since  uint64 // the first line that their scrollback must have
	main   bool   // they have seen the main screen
	lost   bool   // some of them were not kept
	lines  int    // number of compared lines
	before []string
}

// join adds a person at a new terminal with the output of a shell.
func join(t *testing.T, to seat, s *screen.Screen, cols, rows int) *watch {
	to.start(cols, rows)
	w := &watch{t: t, r: NewRenderer(cols, rows), s: s, to: to}
	// The output fills the terminal, or more, depending on the size.
	var text strings.Builder
	for i := range rows * 3 / 4 {
		line := fmt.Sprintf("%d", i%10)
		w.before = append(w.before, line)
		text.WriteString("\r\n" + line)
	}
	w.before = append([]string{""}, w.before...)
	_ = allowed([]byte(text.String()))
	to.feed([]byte(text.String()))
	to.feed(w.r.Enter())
	return w
}

// see draws the screen and fails if the terminal differs from one that has shown the whole stream:
// the window as the screen, and above it all lines that have left the screen since.
func (w *watch) see(what, status string) {
	w.t.Helper()
	alternate := w.s.Modes().AltScreen
	if !w.main {
		w.since = w.s.Scrolled()
	}
	w.main = w.main || !alternate
	out := string(w.r.Draw(Frame{Screen: w.s, Status: status, Driver: len(status)%2 == 0}))
	w.to.feed([]byte(out))
	got := w.to.look()
	if got.x == w.r.cols { // a pending wrap, where nothing wraps
		got.x--
	}
	_, rows := w.r.Area()
	want := look{alternate: alternate, above: got.above, visible: w.s.Cursor().Visible}
	for y := range rows {
		want.rows = append(want.rows, describe(wantCells(w.r, w.s, y)))
	}
	if w.r.rows > 1 {
		line, _ := statusLine(status, w.r.cols)
		want.rows = append(want.rows, describe(line))
	}
	x0, y0 := w.r.Offset()
	if want.x, want.y = w.s.Cursor().X-x0, w.s.Cursor().Y-y0; !want.visible {
		want.x, want.y = got.x, got.y
	}
	w.lost = w.lost || w.since < w.s.Kept()
	if _, sr := w.s.Size(); !alternate && !w.lost && sr <= rows && rows > 1 {
		// Lines are cut to the width of the window that they left.
		for ; w.since < w.s.Scrolled(); w.since++ {
			w.before = append(w.before, describe(w.r.clip(w.s.AppendKept(nil, w.since))))
			w.lines++
		}
		want.above = w.before
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(look{})); diff != "" {
		w.t.Fatalf("%s, drawn as %q (-want +got):\n%s", what, out, diff)
	}
}

// leave ends the visit, and fails if the terminal is not as a shell needs it.
func (w *watch) leave(what, status string) {
	w.t.Helper()
	was := w.to.look()
	w.to.feed(w.r.Leave())
	now := w.to.look()
	if now.alternate || !now.wraps || !now.visible {
		w.t.Fatalf("%s: left with %+v", what, now)
	}
	if !w.main {
		if want := append(slices.Clone(w.before),
			make([]string, w.r.rows)...)[:w.r.rows]; !slices.Equal(now.rows, want) ||
			now.y != len(w.before)-1 {
			w.t.Fatalf("%s: the terminal was not restored:\n%q\nwant\n%q", what, now.rows, want)
		}
		return
	}
	for y, line := range now.rows {
		if y >= now.y && line != "" || now.x != 0 {
			w.t.Fatalf("%s: the cursor at %d,%d is not below what was drawn:\n%q", what, now.x,
				now.y, now.rows)
		}
	}
	if !was.alternate && w.r.rows > 1 {
		_, rows := w.r.Area()
		if want := append(slices.Clone(was.rows[:rows]), ""); !slices.Equal(now.rows, want) ||
			!slices.Equal(now.above, was.above) {
			w.t.Fatalf("%s: leaving changed what is shown:\n%q\nwant\n%q", what, now.rows, want)
		}
	}
	// The whole window scrolls again, without colour.
	w.to.feed([]byte(strings.Repeat("\r\n", 2*w.r.rows)))
	if last := w.to.look(); slices.ContainsFunc(
		last.rows, func(line string) bool { return line != "" }) {
		w.t.Fatalf("%s: a scroll region or a colour is left: %q", what, last.rows)
	}
}

// lively returns a program's output that scrolls, without sequences that erase scrolled lines.
func lively(r *rand.Rand, cols, rows int) string {
	var b strings.Builder
	for range 1 + r.IntN(4) {
		b.WriteString(stream(r, 1+r.IntN(10), cols, rows))
		if r.IntN(3) == 0 {
			b.WriteString("\x1b[r\x1b[99;1H")
		}
		for range r.IntN(2) * r.IntN(2*rows) {
			fmt.Fprintf(&b, "\r\nline %d", r.IntN(1000))
		}
		if r.IntN(5) == 0 {
			b.WriteString("\x1b[?1049l")
		}
	}
	return strings.ReplaceAll(b.String(), "\x1bc", "")
}

// property checks that, for any stream and any points at which people join and look, their terminal
// shows the same as one that has shown the whole stream, and so does the scrollback. It returns how
// many lines of scrollback were compared.
func property(t *testing.T, to seat, seed uint64, edit func(string) string) int {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	cols, rows := 2+r.IntN(40), 1+r.IntN(12)
	wc, wr := cols, rows+1
	switch seed % 4 {
	case 0:
		wc, wr = 1+r.IntN(50), 1+r.IntN(15)
	case 1:
		wc, wr = 1+r.IntN(50), rows+1+r.IntN(10)
	}
	s := screen.New(screen.Options{Cols: cols, Rows: rows, Scrollback: 20000})
	for range r.IntN(4) {
		s.Write([]byte(edit(lively(r, cols, rows))))
	}
	w := join(t, to, s, wc, wr)
	for step := range 8 {
		what := fmt.Sprintf("stream %d, step %d, %d×%d in %d×%d", seed, step, cols, rows, wc, wr)
		w.see(what, strings.Repeat("status", step%3))
		for _, b := range [][]byte{[]byte(edit(lively(r, cols, rows)))} {
			cut := r.IntN(len(b) + 1)
			s.Write(b[:cut])
			w.see(what+", cut", "cut")
			s.Write(b[cut:])
		}
	}
	w.leave(fmt.Sprintf("stream %d", seed), "")
	return w.lines
}

func TestProperty(t *testing.T) {
	n, lines := 500, 0
	if testing.Short() {
		n = 300
	}
	for seed := range uint64(n) {
		lines += property(t, &model{t: t}, seed, func(in string) string { return in })
	}
	t.Logf("%d streams, %d lines compared in the scrollback", n, lines)
}

func TestPropertyXterm(t *testing.T) {
	x := startXterm(t)
	n, lines := 150, 0
	if testing.Short() {
		n = 100
	}
	for seed := range uint64(n) {
		lines += property(t, x, seed, func(in string) string { return in })
	}
	t.Logf("%d streams, %d lines compared in the scrollback", n, lines)
}

// recorded are the streams of real programs on 80 columns by 24 rows.
func recorded(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("../../sandbox/session/screen/testdata/recorded/*.rec")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	all := make(map[string][]byte)
	for _, file := range files {
		if all[filepath.Base(file)], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// The same for the output of real programs.
func TestPropertyRecorded(t *testing.T) {
	joins := 0
	for _, to := range []seat{&model{t: t}, startXterm(t)} {
		for name, in := range recorded(t) {
			for seed := range uint64(3) {
				r := rand.New(rand.NewPCG(seed, 6))
				s := screen.New(screen.Options{Cols: 80, Rows: 24, Scrollback: 5000})
				at := 0
				next := func() {
					n := r.IntN(len(in)/8 + 2)
					end := min(at+n, len(in))
					s.Write(in[at:end])
					at = end
				}
				next()
				rows := 25
				if seed%3 == 2 {
					rows = 14
				}
				w := join(t, to, s, 80, rows)
				for at < len(in) {
					w.see(fmt.Sprintf("%s, join %d, offset %d", name, seed, at), name)
					next()
				}
				w.see(name+" at its end", name)
				w.leave(name, name)
				joins++
			}
		}
	}
	t.Logf("%d joins", joins)
}
