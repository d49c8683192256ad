package screen

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/screen/screentest"
)

// pane returns the content of the pane as one of our screens, and its cursor.
func pane(m *screentest.Tmux, cols, rows int) (s *Screen, cursor string) {
	out := m.Run("display", "-p", "#{cursor_x},#{cursor_y},#{cursor_flag}", ";", "capture-pane",
		"-p", "-e", "-N")
	cursor, out, _ = strings.Cut(out, "\n")
	s = New(Options{Cols: cols, Rows: rows})
	for y, line := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
		fmt.Fprintf(s, "\x1b)0\x1b[%dH%s", y+1, line)
	}
	return s, cursor
}

// cells returns the text of s with its colors, except for those of spaces. tmux does not report the
// background of erased cells at the end of a line, and it wraps onto a line of the default color.
func cells(s *Screen) string {
	var b strings.Builder
	_, rows := s.Size()
	for y := range rows {
		var last Style
		line := s.Line(y)
		for len(line) > 0 && line[len(line)-1].Text == " " {
			line = line[:len(line)-1]
		}
		for _, c := range line {
			if c.Text == " " {
				c.Style = Style{}
			}
			if c.Style != last {
				b.Write(c.Style.AppendSGR(nil, last))
				last = c.Style
			}
			b.WriteString(c.Text)
		}
		b.WriteByte('\n')
	}
	return strings.ReplaceAll(b.String(), "\x1b", "␛")
}

// TestAgainstTmux checks that our screen shows the same as tmux for random streams: text, colors
// and cursor.
func TestAgainstTmux(t *testing.T) {
	const cols, rows = 20, 6
	m := screentest.StartTmux(t, cols, rows, 500)
	n := 150
	if testing.Short() {
		n = 20
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 7))
		in := stream(r, 40, cols, rows)
		m.Write("\x1bc\x1b7" + in) // RIS of tmux does not reset a saved origin mode
		want, cursor := pane(m, cols, rows)
		got := New(Options{Cols: cols, Rows: rows})
		got.Write([]byte(in))
		c := got.Cursor()
		visible := map[bool]int{true: 1}[c.Visible]
		// If a wrap is pending, tmux reports a cursor beyond the margin.
		ours := fmt.Sprintf("%d,%d,%d", got.x, c.Y, visible)
		if cells(got) != cells(want) || ours != cursor {
			t.Errorf("stream %d: %q\ntmux shows, cursor at %s:\n%s\nwe show, cursor at %s:\n%s",
				seed, in, cursor, cells(want), ours, cells(got))
			break
		}
	}
}

// TestResizeAgainstTmux checks that wrapped lines are rewrapped as in tmux, and that the cursor
// stays at its character. The number of lines that move to the history differs: tmux moves lines
// even if rows below are empty.
func TestResizeAgainstTmux(t *testing.T) {
	const rows = 20
	m := screentest.StartTmux(t, 40, rows, 500)
	r := rand.New(rand.NewPCG(11, 12))
	words := []string{"word ", "世界 ", "longer-word ", "e\u0301 "}
	for i := range 10 {
		m.Run("resize-window", "-x", "40", "-y", strconv.Itoa(rows))
		m.Write("\x1bc")
		m.Run("clear-history")
		var in strings.Builder
		for range 4 {
			line := "."
			for range r.IntN(12) {
				line += words[r.IntN(len(words))]
			}
			// Our screen does not wrap trailing spaces.
			in.WriteString(strings.TrimRight(line, " ") + "\r\n")
		}
		fmt.Fprintf(&in, "$ %s", strings.Repeat("x", 1+r.IntN(70)))
		s := New(Options{Cols: 40, Rows: rows, Scrollback: 100})
		s.Write([]byte(in.String()))
		m.Write(in.String())
		for _, cols := range []int{23, 31, 60, 39, 100, 40} {
			m.Run("resize-window", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows))
			s.Resize(cols, rows)
			check(t, s)
			out := m.Run("display", "-p", "#{cursor_x} #{cursor_y} #{history_size}", ";",
				"capture-pane", "-p", "-S", "-")
			var x, y, history int
			if _, err := fmt.Sscan(out, &x, &y, &history); err != nil {
				t.Fatal(err)
			}
			_, want, _ := strings.Cut(out, "\n")
			want = strings.TrimRight(want, "\n ")
			if got := s.Text(); got != want || s.x != x || s.y != y+history {
				t.Fatalf(
					"stream %d %q at %d columns\ntmux has, cursor at %d,%d:\n%s\nwe have, cursor "+
						"at %d,%d:\n%s",
					i, in.String(), cols, x, y+history, want, s.x, s.y, got)
			}
		}
	}
}
