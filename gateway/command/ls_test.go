package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// must runs a command as alice and fails the test unless it exits with code.
func (w *world) must(code int, args ...string) string {
	w.t.Helper()
	got, out, errs := w.command(args...)
	if got != code {
		w.t.Fatalf("%q: exit %d, want %d\n%s%s", args, got, code, out, errs)
	}
	return out
}

// started runs a command in the background. stop disconnects its caller; done then receives its
// exit code.
func (w *world) started(env *Env, args ...string) (stop func(), done <-chan int) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*time.Minute)
	ended := make(chan int, 1)
	env.Hub, env.Principal = w.hub, alice
	if env.Stderr == nil {
		env.Stderr = io.Discard
	}
	if env.Stdin == nil {
		env.Stdin = strings.NewReader("")
	}
	go func() { ended <- Run(ctx, env, args) }()
	w.t.Cleanup(cancel)
	return cancel, ended
}

// ls shows a sandbox that asks, one whose shell died, and one that is idle.
func TestLsNeeds(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "one")
	w.must(0, "new", "two")
	w.must(0, "new", "three")
	w.must(123, "run", "-n", "one", "--", "read -p 'Go on? [Y/n] ' x")
	w.must(123, "run", "-n", "one~build", "--", "read -s -p 'Password: ' x")
	w.must(3, "run", "-n", "two", "--", "exit 3")
	w.must(0, "run", "-n", "three", "--", "true")
	out := w.must(0, "ls")
	var got []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		got = append(got, strings.Join(slices.Concat(f[:3], f[4:5], f[9:]), " "))
	}
	want := []string{"NAME STATE NEEDS KEYBOARD LAST",
		"one running asks+1 agent:alice Go on? [Y/n]"}
	if len(got) != 4 || !slices.Equal(got[:2], want) ||
		!strings.HasPrefix(got[2], "three running - -") ||
		!strings.HasPrefix(got[3], "two running dead:3 - ") {
		t.Errorf("got %q from\n%s", got, out)
	}
	var rows []map[string]any
	for line := range strings.Lines(w.must(0, "sessions", "--json")) {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	var needs []string
	for _, r := range rows {
		since, err := time.Parse(time.RFC3339, fmt.Sprint(r["since"]))
		if err != nil || time.Since(since) > time.Hour {
			t.Errorf("since %v: %v", r["since"], err)
		}
		needs = append(needs, fmt.Sprint(r["sandbox"], "~", r["name"], " ", r["needs"]))
		if r["name"] == "build" && r["last_line"] != "Password:" {
			t.Errorf("last line %q", r["last_line"])
		}
	}
	if want := []string{"one~build asks", "one~main asks", "three~main ",
		"two~main dead"}; !slices.Equal(needs, want) {
		t.Errorf("got %q, want %q", needs, want)
	}
}

// ls --watch --json prints an object for each session and for each change, until the caller
// disconnects.
func TestLsWatchJSON(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "demo")
	r, out := io.Pipe()
	stop, done := w.started(&Env{Stdout: out}, "ls", "--watch", "--json")
	lines := bufio.NewScanner(r)
	next := func(what string, cond func(map[string]any) bool) map[string]any {
		t.Helper()
		for lines.Scan() {
			var n map[string]any
			if err := json.Unmarshal(lines.Bytes(), &n); err != nil {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			if cond(n) {
				return n
			}
		}
		t.Fatalf("never: %s", what)
		return nil
	}
	at, err := w.hub.Sessions.Join(t.Context(), alice, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	next("the prompt", func(n map[string]any) bool {
		return n["phase"] == "prompt" && n["needs"] == ""
	})
	if err := at.Input(t.Context(), []byte("read -p 'Na''me? ' x\n")); err != nil {
		t.Fatal(err)
	}
	n := next("a question", func(n map[string]any) bool { return n["needs"] == "asks" })
	for key, want := range map[string]string{"sandbox": "demo", "session": "main", "want": "line",
		"last_line": "Name?", "phase": "waiting", "keyboard": "person:alice"} {
		if n[key] != want {
			t.Errorf("%s is %v, want %s", key, n[key], want)
		}
	}
	if _, err := time.Parse(time.RFC3339, fmt.Sprint(n["since"])); err != nil {
		t.Error(err)
	}
	stop()
	go io.Copy(io.Discard, r) // ends with the test
	<-done
	out.Close()
}

// ^C of a caller without a terminal exits with 130. A write to a caller that is gone ends it, too.
func TestLsWatchEnds(t *testing.T) {
	w := newWorld(t)
	interrupts := make(chan struct{}, 1)
	interrupts <- struct{}{}
	_, done := w.started(&Env{Stdout: io.Discard, Interrupts: interrupts}, "ls", "--watch")
	if code := <-done; code != 130 {
		t.Errorf("exit %d, want 130", code)
	}
	w.must(0, "new", "demo")
	w.must(0, "run", "-n", "demo", "true")
	r, out := io.Pipe()
	r.Close()
	_, done = w.started(&Env{Stdout: out}, "ls", "--watch")
	if code := <-done; code == 0 {
		t.Error("a caller who has gone is written to")
	}
}

// A caller's context that ends by ^C on a terminal is not an error.
func TestLsWatchTerminalInterrupted(t *testing.T) {
	w := newWorld(t)
	keys, typed := io.Pipe()
	defer typed.Close()
	term := &terminal{show: screen.New(screen.Options{Cols: 100, Rows: 10})}
	ctx, cancel := context.WithCancelCause(t.Context())
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, &Env{Hub: w.hub, Principal: alice, Stdin: keys, Stdout: term,
			Stderr: &errs, Pty: &wire.PtyReq{Term: "xterm", Cols: 100, Rows: 10}},
			[]string{"ls", "--watch"})
	}()
	term.until(t, "no sandboxes")
	cancel(errors.New("interrupted"))
	if code := <-done; code != 130 || errs.Len() > 0 {
		t.Errorf("exit %d, %s", code, errs.String())
	}
}

// terminal records what a terminal shows, and how often it was written to.
type terminal struct {
	mu     sync.Mutex
	show   *screen.Screen
	writes int
	all    bytes.Buffer
}

func (s *terminal) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	s.all.Write(p)
	return s.show.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n")))
}

func (s *terminal) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.show.Text()
}

func (s *terminal) until(t *testing.T, what string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(s.text(), what) {
		if time.Now().After(deadline) {
			t.Fatalf("never %q; it shows:\n%s", what, s.text())
		}
		<-tick.C
	}
}

// On a terminal the table is redrawn in place; q restores the terminal.
func TestLsWatchTerminal(t *testing.T) {
	w := newWorld(t)
	keys, typed := io.Pipe()
	term := &terminal{show: screen.New(screen.Options{Cols: 100, Rows: 10})}
	resized := make(chan wire.WindowChange, 1)
	_, done := w.started(&Env{Stdin: keys, Stdout: term,
		Pty: &wire.PtyReq{Term: "xterm", Cols: 100, Rows: 10}, Resized: resized}, "ls", "--watch")
	term.until(t, "no sandboxes; create one: sandboxd new demo")
	w.must(0, "new", "demo")
	term.until(t, "demo  running")
	w.must(123, "run", "-n", "demo", "--", `printf '\033[31m'; read -p 'Go on? [Y/n] ' x`)
	term.until(t, "Go on? [Y/n]")
	term.until(t, "1 sandbox, 1 needs attention   q quits")
	if !strings.Contains(term.text(), "asks") || !strings.Contains(term.text(), "agent:alice") {
		t.Errorf("it shows\n%s", term.text())
	}
	w.must(0, "type", "-n", "demo", "y")
	term.until(t, "1 sandbox   q quits")
	resized <- wire.WindowChange{Cols: 20, Rows: 5}
	term.mu.Lock()
	term.show.Resize(20, 5)
	term.mu.Unlock()
	term.until(t, "NAME  STATE    NEEDS")
	io.WriteString(typed, "q")
	if code := <-done; code != 0 {
		t.Errorf("exit %d", code)
	}
	typed.Close()
	if all := term.all.String(); !strings.HasSuffix(all, "\x1b[?1049l") ||
		strings.Contains(all, "\x1b[31m") {
		t.Errorf("it was sent %q", all)
	}
}

func TestTableLines(t *testing.T) {
	var rows []row
	for i := range 50 {
		r := row{Info: lifecycle.Info{Name: fmt.Sprintf("box-%02d", i), State: lifecycle.Running,
			Since: time.Now()}}
		if i == 40 || i == 7 {
			r.need = attention.Need{Session: "main", Needs: attention.Answer,
				Want: wire.WantPassword, LastLine: "Password:", Since: time.Now()}
		}
		rows = append(rows, r)
	}
	for _, height := range []int{1, 2, 3, 5, 20, 52, 60} {
		lines := tableLines(rows, height)
		text := strings.Join(lines, "\n")
		if height >= 4 && (len(lines) > height || !strings.Contains(text, "box-07") ||
			!strings.Contains(text, "box-40") || strings.Count(text, "asks:password") != 2) {
			t.Errorf("%d lines:\n%s", height, text)
		}
		if foot := lines[len(lines)-1]; height >= 52 &&
			foot != "50 sandboxes, 2 need attention   q quits" || height == 5 &&
			foot != "50 sandboxes, 2 need attention, 47 not shown   q quits" {
			t.Errorf("%d lines: foot %q", height, foot)
		}
	}
}
