package sshd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// seat is a person at their own terminal with the real ssh client.
type seat struct {
	t   testing.TB
	tty *os.File
	cmd *exec.Cmd

	mu   sync.Mutex
	show *screen.Screen // guarded by mu; what their terminal shows
	all  bytes.Buffer   // guarded by mu; all bytes that it received
	over chan struct{}
}

// sit starts ssh in a terminal of 100 columns by 20 rows.
func (w *world) sit(key string, args ...string) *seat {
	w.t.Helper()
	const cols, rows = 100, 20
	s := &seat{t: w.t, cmd: w.ssh(key, args...),
		show: screen.New(screen.Options{Cols: cols, Rows: rows}), over: make(chan struct{})}
	s.cmd.Env = append(s.cmd.Env, "TERM=xterm-256color")
	var err error
	if s.tty, err = pty.StartWithSize(s.cmd, &pty.Winsize{Cols: cols, Rows: rows}); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(s.over)
		buf := make([]byte, 4096)
		for {
			n, err := s.tty.Read(buf)
			s.mu.Lock()
			s.show.Write(buf[:n])
			s.all.Write(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	w.t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.tty.Close()
		<-s.over
	})
	return s
}

func (s *seat) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.show.Text()
}

func (s *seat) bytes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

// status returns the bottom row.
func (s *seat) status() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, rows := s.show.Size()
	return s.show.LineText(rows - 1)
}

func (s *seat) sees(want string) {
	s.t.Helper()
	s.until("sees "+want, func() bool { return strings.Contains(s.text(), want) })
}

func (s *seat) until(what string, cond func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			s.t.Fatalf("never %s; the terminal shows:\n%s", what, s.text())
		}
		<-tick.C
	}
}

func (s *seat) types(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.tty, text); err != nil {
		s.t.Fatal(err)
	}
}

// leaves waits for the end and returns ssh's exit status.
func (s *seat) leaves() int {
	s.t.Helper()
	select {
	case <-s.over:
	case <-time.After(time.Minute):
		s.t.Fatalf("does not leave; the terminal shows:\n%s", s.text())
	}
	s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

var (
	alicePerson = gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightDrive}
	aliceAgent  = gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive}
)

// shared returns the shared attachment of the principal's commands on main.
func (w *world) shared() *attach.Attachment {
	w.t.Helper()
	at, err := w.hub.Sessions.Shared(w.t.Context(), aliceAgent,
		wire.Target{Sandbox: "demo", Session: "main"}, attach.JoinOptions{Create: true})
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

// The first login creates the sandbox and says so. Typing takes the free keyboard.
func TestPersonFirstLogin(t *testing.T) {
	w := newWorld(t, worldOptions{})
	s := w.sit("alice", "demo@127.0.0.1")
	s.until("notice of the new sandbox", func() bool {
		return strings.Contains(s.status(), "new sandbox demo (base, 0.") &&
			strings.Contains(s.status(), "^]? help")
	})
	s.types("echo $((6*7))\r")
	s.sees("42")
	s.until("driving", func() bool { return strings.Contains(s.status(), "demo~main") })
	s.types("exit 5\r")
	if got := s.leaves(); got != 5 {
		t.Errorf("exit status %d, want 5", got)
	}
	if !strings.Contains(s.text(), "demo~main ended with exit status 5") {
		t.Errorf("last words:\n%s", s.text())
	}
	// The terminal is restored.
	if all := s.bytes(); strings.LastIndex(all, "\x1b[?1049l") < strings.LastIndex(
		all, "\x1b[?1049h") {
		t.Error("the alternate screen is still on")
	}
}

// Who joins late has the lines that were printed before in their scrollback, in order.
func TestPersonHasHistory(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	_, err := w.shared().Request(t.Context(), wire.Request{Verb: wire.VerbRun,
		Text: "for i in $(seq 400); do echo before-$i.; done; echo now", TimeoutMS: 20000})
	if err != nil {
		t.Fatal(err)
	}
	s := w.sit("alice", "demo@127.0.0.1")
	s.sees("now")
	all := s.bytes()
	for i := 1; i <= 400; i++ {
		line := fmt.Sprintf("before-%d.", i)
		at := strings.Index(all, line)
		if at < 0 {
			t.Fatalf("%s is missing or not in order", line)
		}
		all = all[at+len(line):]
	}
}

// A person watches an agent, takes the keyboard with the prefix key, and gives it back.
func TestPersonTakesFromAgent(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	if _, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "echo from the agent; read answer; echo got $answer",
			TimeoutMS: 20000}); err != nil {
		t.Fatal(err)
	}
	s := w.sit("alice", "demo@127.0.0.1")
	s.sees("from the agent")
	s.until("sees the keyboard holder", func() bool {
		return strings.Contains(s.status(), "demo~main") &&
			strings.Contains(s.status(), "agent:alice typing") &&
			strings.Contains(s.status(), "you: watching") &&
			strings.Contains(s.status(), "^]t take")
	})
	s.types("x")
	s.until("gets a hint", func() bool {
		return strings.Contains(s.status(), "agent:alice") &&
			strings.Contains(s.status(), "^]t take")
	})
	s.types("\x1dt")
	s.until("drives", func() bool { return agentLost(agent) })
	s.types("42\r")
	s.sees("got 42")
	s.types("\x1dg")
	s.until("gave it back", func() bool { return agent.Live().Keyboard() != "person:alice" })
	s.types("\x1dd")
	if got := s.leaves(); got != 0 {
		t.Errorf("exit status %d, want 0", got)
	}
	if !strings.Contains(s.text(), "detached from demo~main") {
		t.Errorf("last words:\n%s", s.text())
	}
	if agent.Live().Ended() {
		t.Error("the session ended with the person")
	}
}

// A person who types after giving the keyboard back holds it again, and no longer sees that it was
// given back. Agents are denied.
func TestPersonGivesAndTypes(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	s := w.sit("alice", "demo@127.0.0.1")
	s.until("is in", func() bool { return strings.Contains(s.status(), "demo~main") })
	var took time.Duration
	// Notices also expire: one of these rounds must be faster, however busy the machine is.
	for range 5 {
		s.types("x")
		s.until("types", func() bool { return strings.Contains(s.status(), "you: typing") })
		s.types("\x1dg")
		s.until("gave it back", func() bool { return strings.Contains(s.status(), "given back") })
		start := time.Now()
		s.types("x")
		s.until("types again", func() bool { return strings.Contains(s.status(), "you: typing") })
		if took = time.Since(start); took < person.NoticeTime/2 {
			return
		}
	}
	t.Errorf("read for %v that the keyboard is given back", took)
}

// During a flood the window shows the current output. The last lines are in the person's scrollback
// soon after its end, and at once when they leave.
func TestPersonScrollbackAfterFlood(t *testing.T) {
	const most = 1000 // lines that the gateway keeps for them
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for end, leaves := range map[string]bool{"stays": false, "leaves": true} {
		s := w.sit("alice", "demo@127.0.0.1")
		s.mu.Lock()
		s.show = screen.New(screen.Options{Cols: 100, Rows: 20, Scrollback: 50 * most})
		s.mu.Unlock()
		s.until("is in", func() bool { return strings.Contains(s.status(), "demo~main") })
		s.types("\x1dt")
		s.until("types, and the notice of that has gone: nothing else is drawn",
			func() bool { return strings.Contains(s.status(), "you: typing") })
		s.types("clear; PS1=; for i in $(seq 30); do seq -f '" + end +
			" %.0f' $((i*100)) $((i*100+99)); sleep 0.01; done; echo " + end + "''-now\r")
		s.sees(end + "-now")
		if leaves {
			s.types("\x1dd")
			s.leaves()
		}
		s.until("has the end of the flood in the scrollback",
			func() bool { return s.above(end + " 3080") })
		for _, line := range []string{" 2200", " 2700", " 3000"} {
			if !s.above(end + line) {
				t.Errorf("%s%s is not in the scrollback", end, line)
			}
		}
		if !leaves {
			s.types("\x1dd")
			s.leaves()
		}
	}
}

// above reports whether a line is in the terminal's scrollback.
func (s *seat) above(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := s.show.Kept(); n < s.show.Scrolled(); n++ {
		var b strings.Builder
		for _, c := range s.show.AppendKept(nil, n) {
			b.WriteString(c.Text)
		}
		if strings.TrimRight(b.String(), " ") == text {
			return true
		}
	}
	return false
}

// In a narrow window the status line shows first who has the keyboard.
func TestPersonNarrow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	if _, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "read answer"}); err != nil {
		t.Fatal(err)
	}
	s := w.sit("alice", "demo@127.0.0.1")
	for _, tt := range []struct {
		cols uint16
		want string
	}{
		{80, " demo~main   agent:alice typing   you: watching   ^]t take   120×40, clipped"},
		{70, " demo~main   agent:alice typing   you: watching   ^]t take"},
		{50, " demo~main   agent:alice typing   ^]t take"},
		{40, " agent:alice typing   ^]t take"},
		{20, " agent:alice typing"},
		{15, " agent:alice t…"},
	} {
		if err := pty.Setsize(s.tty, &pty.Winsize{Cols: tt.cols, Rows: 20}); err != nil {
			t.Fatal(err)
		}
		s.until("says "+tt.want, func() bool { return s.status() == tt.want })
	}
	s.types("\x1dt")
	s.until("says that they type", func() bool { return s.status() == " you: typing" })
}

// Who watches a session that is wider than their window sees its other parts with the prefix key
// and arrows.
func TestPersonPans(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	if _, err := w.shared().Request(t.Context(), wire.Request{Verb: wire.VerbRun,
		Text: `printf '\e[H\e[2Jleft\e[3;115Hright\e[10;1H'; read x`}); err != nil {
		t.Fatal(err)
	}
	s := w.sit("alice", "demo@127.0.0.1")
	s.sees("left")
	s.types("\x1d\x1b[C\x1d\x1bOC")
	s.sees("right")
	s.until("says where", func() bool {
		return strings.Contains(s.status(), "120×40 from 21,1   ^]c to the cursor")
	})
	s.types("\x1dc")
	s.sees("left")
	if strings.Contains(s.text(), "right") {
		t.Errorf("it follows the cursor, but shows\n%s", s.text())
	}
}

func agentLost(a *attach.Attachment) bool { return a.Live().Keyboard() == "person:alice" }

// A watch key shows the session and does nothing else.
func TestPersonWatchOnly(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	s := w.sit("watch", "demo@127.0.0.1")
	if _, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "echo visible"}); err != nil {
		t.Fatal(err)
	}
	s.sees("visible")
	s.types("touch typed\r\x1dt")
	s.until("notice", func() bool { return strings.Contains(s.status(), "may only watch") })
	reply, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "ls typed; echo $LINES"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(reply.Result.Output, "typed\n") &&
		!strings.Contains(reply.Result.Output, "No such file") {
		t.Errorf("the watcher typed: %q", reply.Result.Output)
	}
	s.types("\x1dd")
	s.leaves()
}

// The size of a watcher's window does not change the terminal's; a driver's does.
func TestPersonSize(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	s := w.sit("alice", "demo@127.0.0.1")
	s.until("is in", func() bool { return strings.Contains(s.status(), "demo~main") })
	if cols, rows := agent.Live().Size(); cols != wire.DefaultCols || rows != wire.DefaultRows {
		t.Errorf("joining made it %d×%d", cols, rows)
	}
	s.until("notice that it is clipped",
		func() bool { return strings.Contains(s.status(), "120×40") })
	s.types("\x1dt")
	s.until("the terminal has the driver's size",
		func() bool { cols, rows := agent.Live().Size(); return cols == 100 && rows == 19 })
	if err := pty.Setsize(s.tty, &pty.Winsize{Cols: 90, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	s.until("resizes", func() bool {
		cols, rows := agent.Live().Size()
		return cols == 90 && rows == 29
	})
	s.types("\x1dg")
	s.until("gives the size back", func() bool {
		cols, rows := agent.Live().Size()
		return cols == wire.DefaultCols && rows == wire.DefaultRows
	})
}

// Only control sequences of the renderer reach a person, none of the program's.
func TestPersonSafety(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	s := w.sit("alice", "demo@127.0.0.1")
	s.until("is in", func() bool { return strings.Contains(s.status(), "demo~main") })
	s.types(
		`printf '\033]0;title\007\033]52;c;aGk=\007\033P+q544e\033\\\033[5i\033[21t\033[?1000h\033]8;;file:///\033\\link\033]8;;\033\\'; echo; echo sa''fe` + "\r")
	s.sees("safe")
	for _, bad := range []string{"\x1b]", "\x1bP", "\x1b_", "\x1b^", "\x1bX", "\x1b[5i", "\x1b[21t",
		"\x9d", "\x90"} {
		if strings.Contains(s.bytes(), bad) {
			t.Errorf("%q reached the terminal", bad)
		}
	}
	s.types("\x1dd")
	s.leaves()
	if all := s.bytes(); strings.Contains(all, "\x1b[?1000h") &&
		strings.LastIndex(all, "\x1b[?1000l") < strings.LastIndex(all, "\x1b[?1000h") {
		t.Error("mouse reports are still on")
	}
}

// Two people: each sees what the other types, and one may leave without the other.
func TestTwoPeople(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	one, two := w.sit("alice", "demo@127.0.0.1"), w.sit("alice", "demo@127.0.0.1")
	one.until("is in", func() bool { return strings.Contains(one.status(), "demo~main") })
	two.until("is in", func() bool { return strings.Contains(two.status(), "demo~main") })
	one.types("echo se''en by both\r")
	one.sees("seen by both")
	two.sees("seen by both")
	// OpenSSH's ~. only detaches.
	one.types("\r~.")
	one.leaves()
	two.until("sees the keyboard free", func() bool {
		return !strings.Contains(two.status(), "person:alice typing")
	})
	two.types("\x1dt")
	two.until("drives", func() bool {
		return strings.Contains(two.status(), "yours") ||
			strings.Contains(two.status(), "you: typing")
	})
	two.types("echo al''one\r")
	two.sees("alone")
}

// When a person is disconnected, or the server closes, the terminal is restored with the reason.
func TestPersonSentAway(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	s := w.sit("alice", "demo~build@127.0.0.1")
	s.until("is in", func() bool { return strings.Contains(s.status(), "demo~build") })
	n, err := w.hub.Sessions.Disconnect(t.Context(), alicePerson,
		wire.Target{Sandbox: "demo", Session: "build"}, "person:alice")
	if n != 1 || err != nil {
		t.Fatalf("kicked %d, %v", n, err)
	}
	if got := s.leaves(); got != 255 || !strings.Contains(
		s.text(), "the owner disconnected you from demo~build") {
		t.Errorf("exit status %d:\n%s", got, s.text())
	}
}

// When the daemon stops, the terminal is restored at once, with the reason.
func TestPersonAtClosingTime(t *testing.T) {
	best := time.Hour // on a busy machine one of them may take longer
	for tries := 0; tries < 10 && best > farewell; tries++ {
		w := newWorld(t, worldOptions{})
		w.sandbox("demo")
		s := w.sit("alice", "demo@127.0.0.1")
		s.until("is in", func() bool { return strings.Contains(s.status(), "demo~main") })
		began := time.Now()
		w.closeDoor()
		if got := s.leaves(); got != 255 ||
			!strings.Contains(s.text(), "the gateway is stopping; demo~main continues") {
			t.Errorf("exit status %d:\n%s", got, s.text())
		}
		best = min(best, time.Since(began))
	}
	if best > farewell {
		t.Errorf("the best of 10 took %v", best)
	}
}

// The server draws a command line that only watches, and never drives.
func TestControlHostWatch(t *testing.T) {
	w := newWorld(t, worldOptions{watches: func(args []string) (wire.Target, bool) {
		return wire.Target{Sandbox: "demo", Session: "main"}, args[0] == "watch"
	}})
	w.sandbox("demo")
	agent := w.shared()
	s := w.sit("alice", "-t", "sandboxd@127.0.0.1", "watch demo")
	if _, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "echo visible"}); err != nil {
		t.Fatal(err)
	}
	s.sees("visible")
	s.types("x")
	s.until("notice", func() bool { return strings.Contains(s.status(), "only watch") })
	s.types("\x1dd")
	s.leaves()
}

// Output that a command draws on a person's terminal goes through the renderer.
func TestControlHostCanvas(t *testing.T) {
	w := newWorld(t, worldOptions{commands: func(ctx context.Context, _ gateway.Principal,
		c CommandIO) int {
		canvas := c.Draw(80, 10)
		io.WriteString(canvas, "\x1b]0;title\x07\x1b[31mplayed\x1b[m\r\n")
		canvas.Resize(60, 10)
		io.WriteString(canvas, "after it\r\n")
		<-ctx.Done()
		canvas.Close()
		return 0
	}})
	s := w.sit("alice", "-t", "sandboxd@127.0.0.1", "replay demo")
	s.sees("played")
	s.sees("after it")
	s.types("\x03")
	if got := s.leaves(); got != 130 {
		t.Errorf("exit status %d, want 130", got)
	}
	if strings.Contains(s.bytes(), "\x1b]") {
		t.Error("a title reached the terminal")
	}
}

// A sandbox that a login may not create gets the same error as any.
func TestPersonNoCreation(t *testing.T) {
	w := newWorld(t, worldOptions{})
	for _, name := range []string{"localuser", "root", "admin", "git", "new"} {
		s := w.sit("alice", name+"@127.0.0.1")
		if got := s.leaves(); got != 255 || !strings.Contains(s.text(), "sandboxd: ") {
			t.Errorf("%s: exit status %d:\n%s", name, got, s.text())
		}
	}
	if infos, err := w.hub.List(t.Context(), alicePerson); err != nil || len(infos) != 0 {
		t.Errorf("made %v, %v", infos, err)
	}
}
