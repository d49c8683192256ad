package view

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// A person's terminal that is a real one shows what the program's screen has.
func TestDrawToTmux(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" || os.Getenv("CI") == "true" {
			t.Fatal("tmux, the person's terminal of this test, is not installed; scripts/setup test installs it")
		}
		t.Skip("tmux, the person's terminal of this test, is not installed")
	}
	const cols, rows = 30, 8
	socket := t.TempDir() + "/s"
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("tmux", append([]string{"-u", "-S", socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("tmux %q: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("start-server", ";", "set", "-g", "status", "off", ";", "new-session", "-d", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows+1), "sleep 600")
	t.Cleanup(func() { run("kill-server") })
	name := strings.TrimSpace(run("display", "-p", "#{pane_tty}"))
	if out, err := exec.Command("stty", "-F", name, "raw", "-echo").CombinedOutput(); err != nil {
		t.Fatalf("stty -F %s: %v: %s", name, err, out)
	}
	tty, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	marks := 0
	write := func(p []byte) {
		t.Helper()
		marks++
		mark := fmt.Sprintf("mark-%d", marks)
		if _, err := fmt.Fprintf(tty, "%s\x1b]2;%s\a", p, mark); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); strings.TrimSpace(run("display", "-p", "#{pane_title}")) != mark; {
			if time.Now().After(deadline) {
				t.Fatalf("tmux did not get to the end of %q", p)
			}
		}
	}
	show := func() (text, cursor string) {
		out := run("display", "-p", "#{cursor_x},#{cursor_y},#{cursor_flag}", ";", "capture-pane", "-p")
		cursor, text, _ = strings.Cut(out, "\n")
		return strings.TrimRight(text, "\n"), cursor
	}

	write([]byte("$ ssh demo@gw\r\n"))
	before, beforeCursor := show()
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := screen.New(screen.Options{Cols: cols, Rows: rows})
		view := NewRenderer(cols, rows+1)
		write(view.Enter())
		for step := range 5 {
			s.Write([]byte(narrow(stream(r, 1+r.IntN(30), cols, rows))))
			f := Frame{Screen: s, Status: fmt.Sprintf("step %d", step), Driver: step%2 == 0}
			out := view.Draw(f)
			write(out)
			want := strings.Repeat("\n", rows) + f.Status
			if text := s.Text(); text != "" {
				want = text + want[strings.Count(text, "\n"):]
			}
			got, cursor := show()
			if got != want {
				t.Fatalf("stream %d, step %d: %q gives\n%s\nwant\n%s", seed, step, out, got, want)
			}
			if c := s.Cursor(); c.Visible && cursor != fmt.Sprintf("%d,%d,1", c.X, c.Y) {
				t.Fatalf("stream %d, step %d: cursor at %s, want %d,%d", seed, step, cursor, c.X, c.Y)
			}
		}
		write(view.Leave())
		if got, cursor := show(); got != before || cursor != beforeCursor {
			t.Fatalf("after leaving, cursor at %s:\n%s\nwant, at %s:\n%s", cursor, got, beforeCursor, before)
		}
	}
}

// narrow leaves out the clusters that this tmux has other widths for than newer terminals, and line drawing, which it reports as letters.
func narrow(in string) string {
	return strings.NewReplacer("👩‍🚀", "", "❤️", "", "👍🏽", "", "1️⃣", "", "🇩", "", "🇪", "", "\u200d", "", "\u0301", "", "\x1b(0", "").Replace(in)
}
