package screen

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tmux is a terminal of a real tmux, which a test writes to as the program in it.
type tmux struct {
	t      *testing.T
	socket string
	tty    *os.File
	marks  int
}

// startTmux starts a tmux server of its own with one pane. Where there is no tmux the test is skipped.
func startTmux(t *testing.T, cols, rows int) *tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatal("tmux, the reference terminal, is not installed; scripts/setup test installs it")
		}
		t.Skip("tmux, the reference terminal, is not installed")
	}
	m := &tmux{t: t, socket: t.TempDir() + "/s"}
	m.run("start-server", ";", "set", "-g", "status", "off", ";", "set", "-g", "history-limit", "500", ";",
		"new-session", "-d", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows), "sleep 600")
	t.Cleanup(func() { m.run("kill-server") })
	name := strings.TrimSpace(m.run("display", "-p", "#{pane_tty}"))
	if out, err := exec.Command("stty", "-F", name, "raw", "-echo").CombinedOutput(); err != nil {
		t.Fatalf("stty -F %s: %v: %s", name, err, out)
	}
	tty, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	m.tty = tty
	return m
}

func (m *tmux) run(args ...string) string {
	m.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-u", "-S", m.socket, "-f", "/dev/null"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// write prints p in the pane and returns when tmux has taken all of it.
func (m *tmux) write(p string) {
	m.t.Helper()
	m.marks++
	mark := fmt.Sprintf("mark-%d", m.marks)
	if _, err := m.tty.WriteString(p + "\x1b]2;" + mark + "\a"); err != nil {
		m.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); strings.TrimSpace(m.run("display", "-p", "#{pane_title}")) != mark; {
		if time.Now().After(deadline) {
			m.t.Fatalf("tmux did not get to the end of %q", p)
		}
	}
}

// screen returns what the pane shows, as a screen of ours, and where its cursor is.
func (m *tmux) screen(cols, rows int) (s *Screen, cursor string) {
	m.t.Helper()
	out := m.run("display", "-p", "#{cursor_x},#{cursor_y},#{cursor_flag}", ";", "capture-pane", "-p", "-e", "-N")
	cursor, out, _ = strings.Cut(out, "\n")
	s = New(Options{Cols: cols, Rows: rows})
	for y, line := range strings.Split(strings.TrimSuffix(out, "\n"), "\n") {
		fmt.Fprintf(s, "\x1b)0\x1b[%dH%s", y+1, line)
	}
	return s, cursor
}

// cells is the text of s with its colours, but for those of spaces: tmux does not tell the background of what is erased at the end of a
// line, and wraps onto a line of the default colour.
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

// What tmux shows of a random stream is what we show: text, colours and cursor.
func TestAgainstTmux(t *testing.T) {
	const cols, rows = 20, 6
	m := startTmux(t, cols, rows)
	n := 150
	if testing.Short() {
		n = 20
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 7))
		in := stream(r, 40, cols, rows)
		m.write("\x1bc\x1b7" + in) // RIS of tmux does not forget a saved origin mode
		want, cursor := m.screen(cols, rows)
		got := New(Options{Cols: cols, Rows: rows})
		got.Write([]byte(in))
		c := got.Cursor()
		visible := map[bool]int{true: 1}[c.Visible]
		// tmux puts the cursor of a pending wrap beyond the margin.
		ours := fmt.Sprintf("%d,%d,%d", got.x, c.Y, visible)
		if cells(got) != cells(want) || ours != cursor {
			t.Errorf("stream %d: %q\ntmux shows, cursor at %s:\n%s\nwe show, cursor at %s:\n%s", seed, in, cursor, cells(want), ours, cells(got))
			break
		}
	}
}

// Lines that wrapped are wrapped anew like in tmux, and the cursor stays at its character. How many of them tmux moves to its history
// differs: it does so even when rows below are empty.
func TestResizeAgainstTmux(t *testing.T) {
	const rows = 20
	m := startTmux(t, 40, rows)
	r := rand.New(rand.NewPCG(11, 12))
	words := []string{"word ", "世界 ", "longer-word ", "e\u0301 "}
	for i := range 10 {
		m.run("resize-window", "-x", "40", "-y", strconv.Itoa(rows))
		m.write("\x1bc")
		m.run("clear-history")
		var in strings.Builder
		for range 4 {
			line := "."
			for range r.IntN(12) {
				line += words[r.IntN(len(words))]
			}
			in.WriteString(strings.TrimRight(line, " ") + "\r\n") // we do not wrap trailing spaces
		}
		fmt.Fprintf(&in, "$ %s", strings.Repeat("x", 1+r.IntN(70)))
		s := New(Options{Cols: 40, Rows: rows, Scrollback: 100})
		s.Write([]byte(in.String()))
		m.write(in.String())
		for _, cols := range []int{23, 31, 60, 39, 100, 40} {
			m.run("resize-window", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows))
			s.Resize(cols, rows)
			check(t, s)
			out := m.run("display", "-p", "#{cursor_x} #{cursor_y} #{history_size}", ";", "capture-pane", "-p", "-S", "-")
			var x, y, history int
			if _, err := fmt.Sscan(out, &x, &y, &history); err != nil {
				t.Fatal(err)
			}
			_, want, _ := strings.Cut(out, "\n")
			want = strings.TrimRight(want, "\n ")
			if got := s.Text(); got != want || s.x != x || s.y != y+history {
				t.Fatalf("stream %d %q at %d columns\ntmux has, cursor at %d,%d:\n%s\nwe have, cursor at %d,%d:\n%s",
					i, in.String(), cols, x, y+history, want, s.x, s.y, got)
			}
		}
	}
}
