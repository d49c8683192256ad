package screentest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// Tmux is a pane of a real tmux. The test writes the output of the program in the pane.
type Tmux struct {
	t      testing.TB
	socket string
	tty    *os.File
	marks  int
}

// StartTmux starts a separate tmux server with one pane that keeps history lines. It ends with the
// test. Without tmux, the test is skipped, or fails if no test may be skipped.
func StartTmux(t testing.TB, cols, rows, history int) *Tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		missing(t, "tmux", err)
	}
	m := &Tmux{t: t, socket: shortdir.New(t) + "/s"}
	m.Run("start-server", ";", "set", "-g", "status", "off", ";", "set", "-g", "history-limit",
		strconv.Itoa(history), ";",
		"new-session", "-d", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows), "sleep 600")
	t.Cleanup(func() { m.Run("kill-server") })
	name := strings.TrimSpace(m.Run("display", "-p", "#{pane_tty}"))
	if out, err := exec.CommandContext(t.Context(), "stty", "-F", name, "raw",
		"-echo").CombinedOutput(); err != nil {
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

// Run executes a tmux command and returns its output.
func (m *Tmux) Run(args ...string) string {
	m.t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(m.t.Context()), "tmux",
		append([]string{"-u", "-S", m.socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// Write prints p in the pane. It returns when tmux has processed all of it.
func (m *Tmux) Write(p string) {
	m.t.Helper()
	m.marks++
	mark := fmt.Sprintf("mark-%d", m.marks)
	if _, err := m.tty.WriteString(p + "\x1b]2;" + mark + "\a"); err != nil {
		m.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); strings.TrimSpace(
		m.Run("display", "-p", "#{pane_title}")) != mark; {
		if time.Now().After(deadline) {
			m.t.Fatalf("tmux did not get to the end of %q", p)
		}
	}
}
