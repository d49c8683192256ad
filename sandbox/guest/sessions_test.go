//go:build linux

package guest

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	ptys "github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// openSession opens the session stream as the daemon does, on its control connection.
func openSession(t testing.TB, client *ssh.Client, a wire.Attach, h wire.Handler) *wire.Client {
	t.Helper()
	order(t, client, wire.Control{Do: "hello"})
	ch, reqs, err := client.OpenChannel(wire.ChannelSession, nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest(wire.RequestSubsystem, true,
		wire.Marshal(wire.Subsystem{Name: wire.SessionSubsystem})); !ok || err != nil {
		t.Fatalf("subsystem: %v, %v", ok, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := wire.Open(ctx, ch, a, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func ask(t testing.TB, c *wire.Client, r wire.Request) *wire.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reply, err := c.Request(ctx, r)
	if err != nil {
		t.Fatalf("%s %q: %v", r.Verb, r.Text, err)
	}
	return reply.Result
}

var alice = &wire.Party{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive, ID: "1"}

func TestSessionRun(t *testing.T) {
	s := newSandbox(t, func(c *wire.GuestConfig) {
		c.Env = []string{"IMAGE=yes", "PATH=/usr/bin:/bin:/image"}
	})
	c := openSession(t, s.dial(t), wire.Attach{Session: "main", Create: true, Party: alice},
		wire.Handler{})
	for i, tt := range []struct {
		command, want string
		status        int
	}{
		{"echo $IMAGE $PAGER $HOME", "yes cat " + s.home, 0},
		{"echo $PATH", "/usr/bin:/bin:/image", 0}, // no login shell replaced it
		{"cd /tmp; pwd", "/tmp", 0},
		{"pwd; (exit 7)", "/tmp", 7},
		{"stty size", "40 120", 0},
		{"env | grep -c -e NONCE -e GOMAXPROCS", "0", 1},
	} {
		r := ask(t, c, wire.Request{Verb: wire.VerbRun, Text: tt.command,
			Op: strings.Repeat("0", 31) + strconv.Itoa(i)})
		if r.Ended != wire.Done || r.ExitCode == nil || *r.ExitCode != tt.status ||
			strings.TrimSpace(r.Output) != tt.want {
			t.Errorf("%s: got %+v, want %d %q", tt.command, *r, tt.status, tt.want)
		}
	}
}

// All processes of a session end with it, also those that left its process group, its session or
// their parent.
func TestSessionCloseEndsItsTree(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	c := openSession(t, client, wire.Attach{Session: "main", Create: true, Party: alice},
		wire.Handler{})
	r := ask(t, c, wire.Request{Verb: wire.VerbRun, Op: strings.Repeat("a", 32),
		Text: "(setsid sh -c 'trap \"\" HUP TERM; echo $$ >pid; while :; do sleep 1; done' " +
			">/dev/null 2>&1 &); while ! [ -s pid ]; do :; done; cat pid"})
	pid, err := strconv.Atoi(strings.TrimSpace(r.Output))
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if !alive(pid) {
		t.Fatalf("the daemon %d does not run", pid)
	}
	if _, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbClose}); err != nil {
		t.Fatal(err)
	}
	await(t, "the daemon is gone", func() bool { return !alive(pid) })
	await(t, "the terminal is released",
		func() bool { return s.ptys.Load() == 0 && len(s.other()) == 0 })
}

func TestEntrypoint(t *testing.T) {
	s := newSandbox(t, func(c *wire.GuestConfig) {
		c.Entrypoint = []string{"sh", "-c", "echo started in $PWD; exit 3"}
	})
	s.Begin(t.Context())
	var state wire.State
	await(t, "the entrypoint ends", func() bool {
		for _, i := range s.Sessions().List() {
			if i.Name == "entrypoint" {
				state = i.State
			}
		}
		return state.Phase == wire.PhaseDead
	})
	if state.ExitCode == nil || *state.ExitCode != 3 {
		t.Errorf("state: %+v, want dead with 3", state)
	}
	if got := execute(t, s.dial(t), "echo alive", ""); got.Out != "alive\n" {
		t.Errorf("its end ended more: %+v", got)
	}
}

// terminalOf starts a program on a terminal, as for a session.
func terminalOf(t testing.TB, g *Guest, argv ...string) session.Local {
	t.Helper()
	start := session.Start{Session: "test"}
	start.Argv, start.Env = argv, []string{"TERM=xterm-256color"}
	term, err := g.startTerminal(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { term.Close() })
	return term.(session.Local)
}

func TestTerminal(t *testing.T) {
	s := newSandbox(t)
	term := terminalOf(t, s.Guest, "sh", "-c",
		"stty -echo -icanon; echo ready; until [ -e go ]; do sleep 0.01; done; stty icanon; read "+
			"b; echo got $b; exit 4")
	expect(t, term, "ready\r\n")
	tree, err := term.Tree()
	if err != nil || len(tree) == 0 || tree[0] != term.TTY().SessionPID {
		t.Errorf("tree: %v, %v; want the shell %d in it", tree, err, term.TTY().SessionPID)
	}
	if group, err := term.Front(); err != nil || group != term.TTY().SessionPID {
		t.Errorf("front: %d, %v; want %d", group, err, term.TTY().SessionPID)
	} else if members, err := term.Members(group); err != nil || !slices.Contains(members, group) {
		t.Errorf("members: %v, %v; want %d among them", members, err, group)
	}
	if _, err := io.WriteString(term, "dropped"); err != nil {
		t.Fatal(err)
	}
	await(t, "input is queued", func() bool { return pending(t, term) > 0 })
	if err := term.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := pending(t, term); n != 0 {
		t.Errorf("after a flush %d bytes are queued", n)
	}
	writeFile(t, s.home, "go", "")
	if _, err := io.WriteString(term, "b\n"); err != nil {
		t.Fatal(err)
	}
	expect(t, term, "got b\r\n")
	if got := term.Wait(); got != (session.Exit{Code: 4}) {
		t.Errorf("exit: %+v, want 4", got)
	}
}

// pending returns the number of unread input bytes of a terminal in non-canonical mode.
func pending(t testing.TB, term session.Local) int {
	t.Helper()
	fd, err := ptys.OpenSlave(int(term.TTY().Master.Fd()), term.TTY().Name)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTerminalEndsBySignal(t *testing.T) {
	s := newSandbox(t)
	term := terminalOf(t, s.Guest, "sleep", "1000")
	if err := term.Signal(term.TTY().SessionPID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := term.Wait(); got.Signal != "TERM" {
		t.Errorf("exit: %+v, want TERM", got)
	}
	if err := term.Signal(term.TTY().SessionPID, unix.SIGTERM); err != nil {
		t.Errorf("to one that is gone: %v", err)
	}
}

// If a keeper is killed, its shell and session end with it, and the session can be closed.
func TestTerminalWithoutKeeper(t *testing.T) {
	s := newSandbox(t)
	term := terminalOf(t, s.Guest, "sh", "-c", "trap '' HUP; echo ready; sleep 1000")
	expect(t, term, "ready\r\n")
	if err := unix.Kill(term.(*terminal).keeper.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := term.Wait(); got.Signal != "KILL" || got.Reason == "" {
		t.Errorf("exit: %+v, want KILL with a reason", got)
	}
	if alive(term.TTY().SessionPID) {
		t.Error("the shell is said to be dead, and lives")
	}
	if err := term.Close(); err != nil {
		t.Fatal(err)
	}
	if alive(term.TTY().SessionPID) {
		t.Error("the shell outlives the terminal")
	}
}

func TestTerminalRefusals(t *testing.T) {
	s := newSandbox(t)
	start := session.Start{Session: "test"}
	start.Argv = []string{"no-such-program"}
	if _, err := s.startTerminal(t.Context(), start); err == nil ||
		!strings.Contains(err.Error(), "no-such-program: not found") {
		t.Errorf("got %v, want not found", err)
	}
	start.Argv = []string{writeFile(t, s.home, "text", "no program")}
	if _, err := s.startTerminal(t.Context(), start); err == nil ||
		!strings.Contains(err.Error(), "permission denied") {
		t.Errorf("got %v, want permission denied", err)
	}
	await(t, "nothing is left", func() bool { return s.ptys.Load() == 0 && len(s.other()) == 0 })
}
