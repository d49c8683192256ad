package view

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/session/screen/screentest"
)

// tmux is a person's terminal that is a pane of a real tmux.
type tmux struct {
	*screentest.Tmux
	t *testing.T
}

func startTmux(t *testing.T, cols, rows int) *tmux {
	t.Helper()
	return &tmux{Tmux: screentest.StartTmux(t, cols, rows, 5000), t: t}
}

// shows returns the content of the pane, its scrollback, and the position of its cursor.
func (m *tmux) shows() (text, above, cursor string) {
	m.t.Helper()
	out := m.Run("display", "-p", "#{cursor_x},#{cursor_y},#{cursor_flag} #{history_size}", ";",
		"capture-pane", "-p", "-e", "-N", "-S", "-")
	head, out, _ := strings.Cut(out, "\n")
	cursor, size, _ := strings.Cut(head, " ")
	n, err := strconv.Atoi(size)
	if err != nil {
		m.t.Fatal(err)
	}
	// tmux's report of colours is parsed into cells, which are described like ours.
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	s := screen.New(screen.Options{Cols: 200, Rows: len(lines)})
	for y, line := range lines {
		fmt.Fprintf(s, "\x1b)0\x1b[%dH%s", y+1, line)
	}
	var got [2][]string
	for y := range lines {
		part := 0
		if y < n {
			part = 1
		}
		got[part] = append(got[part], coloured(s.Line(y)))
	}
	return strings.TrimRight(strings.Join(got[0], "\n"), "\n"), strings.Join(got[1], "\n"), cursor
}

// pane is a person's terminal in tmux, without colours.
type pane struct {
	t *testing.T
	m *tmux
}

func (p *pane) start(cols, rows int) {
	if p.m == nil {
		p.m = startTmux(p.t, cols, rows)
	}
	p.resize(cols, rows)
	p.m.Write("\x1bc")
	p.m.Run("clear-history")
}

func (p *pane) resize(cols, rows int) {
	p.m.Run("resize-window", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows))
}

func (p *pane) feed(b []byte) { p.m.Write(string(b)) }

func (p *pane) look() (l look) {
	text, above, _ := p.m.shows()
	l.above = strings.Split(above, "\n")
	l.rows = append(strings.Split(text, "\n"), make([]string, screen.MaxRows)...)
	return l
}

// coloured returns the text of a line with its colours, except those of spaces, which tmux reports
// only in part.
func coloured(line []screen.Cell) string {
	var b []byte
	var last screen.Style
	for len(line) > 0 && line[len(line)-1].Text == " " {
		line = line[:len(line)-1]
	}
	for _, c := range line {
		if c.Text == " " {
			c.Style = screen.Style{}
		}
		b = c.Style.AppendSGR(b, last)
		last = c.Style
		b = append(b, c.Text...)
	}
	return strings.ReplaceAll(string(b), "\x1b", "␛")
}

// narrow drops clusters that this tmux displays with other widths than newer terminals, line
// drawing, which it reports as letters, and attributes that it does not report.
func narrow(in string) string {
	return strings.NewReplacer("👩‍🚀", "", "❤️", "", "👍🏽", "", "1️⃣", "", "🇩", "", "🇪", "", "\u200d",
		"", "\u0301", "", "\x1b(0", "", "\x1b[4:3;58;5;9m", "", "\x1b[53;9;2m",
		"\x1b[9;2m").Replace(in)
}

// A real terminal shows the program's screen, has above it the lines that scrolled off since the
// person joined, in their colours, below the earlier content; and it is restored.
func TestDrawToTmux(t *testing.T) {
	const cols, rows = 30, 8
	m := startTmux(t, cols, rows+1)
	streams, lines := 40, 0
	if testing.Short() {
		streams = 8
	}
	for seed := range uint64(streams) {
		m.Write("\x1b[H\x1b[2J$ ssh demo@gw\r\n")
		m.Run("clear-history")
		r := rand.New(rand.NewPCG(seed, 2))
		s := screen.New(screen.Options{Cols: cols, Rows: rows, Scrollback: 1000})
		program := func() string {
			in := narrow(stream(r, 1+r.IntN(30), cols, rows)) +
				strings.Repeat("\r\nline", r.IntN(3)*r.IntN(8))
			return strings.ReplaceAll(in, "\x1bc", "")
		}
		s.Write([]byte(program()))
		joined := s.Scrolled()
		view := NewRenderer(cols, rows+1)
		m.Write(string(view.Enter()))
		began := false
		for step := range 5 {
			s.Write([]byte(program()))
			if !began {
				joined = s.Scrolled()
			}
			f := Frame{Screen: s, Status: fmt.Sprintf("step %d", step), Driver: step%2 == 0}
			out := string(view.Draw(f))
			m.Write(out)
			var want []string
			for y := range rows {
				want = append(want, coloured(s.Line(y)))
			}
			status, _ := statusLine(f.Status, cols)
			got, above, cursor := m.shows()
			if want := strings.Join(append(want, coloured(status)), "\n"); got != want {
				t.Fatalf("stream %d, step %d: %q gives\n%s\nwant\n%s", seed, step, out, got, want)
			}
			if c := s.Cursor(); c.Visible && cursor != fmt.Sprintf("%d,%d,1", c.X, c.Y) {
				t.Fatalf("stream %d, step %d: cursor at %s, want %d,%d", seed, step, cursor, c.X,
					c.Y)
			}
			if s.Modes().AltScreen {
				continue
			}
			began = true
			kept := []string{"$ ssh demo@gw", ""}
			for n := joined; n < s.Scrolled(); n++ {
				kept = append(kept, coloured(s.AppendKept(nil, n)))
				lines++
			}
			if want := strings.Join(kept, "\n"); above != want {
				t.Fatalf("stream %d, step %d: %q: above the window is\n%s\nwant\n%s", seed, step,
					out, above, want)
			}
		}
		m.Write(string(view.Leave()))
		m.Write("$ \x1b[41mx\x1b[m")
		got, _, _ := m.shows()
		if last := got[strings.LastIndex(got, "\n")+1:]; last != "$ ␛[41mx" {
			t.Fatalf("stream %d: after leaving, the prompt is not below what was drawn:\n%s", seed,
				got)
		}
		if strings.Contains(got, "step") {
			t.Fatalf("stream %d: after leaving, the status line is there:\n%s", seed, got)
		}
	}
	t.Logf("%d streams, %d lines compared in the scrollback", streams, lines)
}
