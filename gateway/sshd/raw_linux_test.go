package sshd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// shell requests a shell with a terminal, and returns the session, its input and its output.
func (w *world) shell(key, user string) (*ssh.Session, io.Writer, *syncBuffer) {
	w.t.Helper()
	s, err := w.dial(key, user).NewSession()
	if err != nil {
		w.t.Fatal(err)
	}
	in, err := s.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out := &syncBuffer{}
	s.Stdout, s.Stderr = out, out
	if err := s.RequestPty("xterm", 24, 80, nil); err != nil {
		w.t.Fatal(err)
	}
	if err := s.Shell(); err != nil {
		w.t.Fatal(err)
	}
	return s, in, out
}

// wantExit waits for the end of a session and checks its status.
func wantExit(t testing.TB, s *ssh.Session, want int) {
	t.Helper()
	err := s.Wait()
	var exit *ssh.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != want {
		t.Errorf("ended with %v, want exit status %d", err, want)
	}
}

// An agent's key joins raw: exact output, no status line, beginning with the current prompt.
func TestRawJoin(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	if _, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "echo earlier"}); err != nil {
		t.Fatal(err)
	}
	s, in, out := w.shell("agent", "demo")
	eventually(t, "the prompt", func() bool { return out.contains("# ") || out.contains("$ ") })
	io.WriteString(in, "printf '\\033[31mred\\033[m\\n'; exit 6\r")
	wantExit(t, s, 6)
	if !out.contains("\x1b[31mred\x1b[m\r\n") {
		t.Errorf("not the exact bytes: %q", out)
	}
	if out.contains("\x1b[?1049h") || out.contains("demo~main") || out.contains("earlier\r\n") {
		t.Errorf("more than the bytes from the last line on: %q", out)
	}
}

// Input that is rejected because a person has the keyboard is reported.
func TestRawRefusedInput(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	person, err := w.hub.Sessions.Join(t.Context(), alicePerson,
		wire.Target{Sandbox: "demo", Session: "main"},
		attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	if err := person.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, in, out := w.shell("agent", "demo")
	io.WriteString(in, "x\r")
	eventually(t, "the refusal", func() bool {
		return out.contains("input rejected") && out.contains("person:alice")
	})
	if err := person.Give(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it works again", func() bool {
		io.WriteString(in, "echo a''gain\r")
		return out.contains("again\r\n")
	})
}

// A session of demo~new is raw, and ends with its channel.
func TestFresh(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	one, oneIn, oneOut := w.shell("alice", "demo~new")
	two, twoIn, twoOut := w.shell("alice", "demo~new")
	io.WriteString(oneIn, "me=one; echo i am $me; stty size\r")
	io.WriteString(twoIn, "echo i am ${me-two}\r")
	eventually(t, "each its own", func() bool {
		return oneOut.contains("i am one\r\n") && twoOut.contains("i am two\r\n")
	})
	eventually(t, "its size", func() bool { return oneOut.contains("24 80\r\n") })
	if oneOut.contains("am two") || twoOut.contains("am one\r\n") ||
		oneOut.contains("\x1b[?1049h") {
		t.Errorf("one %q\ntwo %q", oneOut, twoOut)
	}
	if err := one.WindowChange(33, 101); err != nil {
		t.Fatal(err)
	}
	eventually(t, "resized", func() bool {
		io.WriteString(oneIn, "stty size\r")
		return oneOut.contains("33 101\r\n")
	})
	sessions := func() int {
		infos, err := w.hub.Sessions.List(context.Background(), alicePerson, "demo")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, i := range infos {
			if i.State.Phase != wire.PhaseDead {
				n++
			}
		}
		return n
	}
	if n := sessions(); n != 2 {
		t.Errorf("%d sessions, want 2", n)
	}
	io.WriteString(oneIn, "exit 9\r")
	wantExit(t, one, 9)
	two.Close()
	eventually(t, "both are gone", func() bool { return sessions() == 0 })
}

const twoShells = `
import paramiko, sys, time
c = paramiko.SSHClient()
c.load_host_keys(sys.argv[3])
c.connect("127.0.0.1", port=int(sys.argv[1]), username="demo~new", key_filename=sys.argv[2], allow_agent=False, look_for_keys=False)
shells = [c.invoke_shell(), c.invoke_shell()]
def until(s, want):
    s.settimeout(20)
    got = b""
    while want not in got:
        b = s.recv(4096)
        assert b, got
        got += b
    return got
for n, s in enumerate(shells):
    s.send("me=%d; echo i am $me.\n" % n)
for n, s in enumerate(shells):
    got = until(s, b"i am %d.\r\n" % n)
    assert b"i am %d.\r\n" % (1-n) not in got, got
for n, s in enumerate(shells):
    s.send("echo still $me.; exit %d\n" % (n+3))
    until(s, b"still %d.\r\n" % n)
    assert s.recv_exit_status() == n+3
c.close()
print("ok")
`

// Two paramiko invoke_shell() calls at demo~new do not see each other.
func TestParamikoShells(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	if got := mustRun(t, w, python, "-c", twoShells, w.port, w.key("alice"),
		w.file("known_hosts")); got != "ok\n" {
		t.Errorf("got %q", got)
	}
}

// The session stream as a subsystem: the login identifies the client, an error is a frame.
func TestSessionSubsystem(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	open := func(key, user string, a wire.Attach, h wire.Handler) (*wire.Client, error) {
		s, err := w.dial(key, user).NewSession()
		if err != nil {
			t.Fatal(err)
		}
		in, _ := s.StdinPipe()
		out, _ := s.StdoutPipe()
		if err := s.RequestSubsystem(wire.SessionSubsystem); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return wire.Open(ctx, streamOf{out, in, s}, a, h)
	}
	c, err := open("agent", "demo", wire.Attach{Session: "main", Create: true}, wire.Handler{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	reply, err := c.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "echo $((6*7)); exit 3", TimeoutMS: 20_000})
	if err != nil || !strings.Contains(reply.Result.Output, "42") {
		t.Errorf("got %+v, %v", reply.Result, err)
	}
	if _, err := open("bob", "demo", wire.Attach{Session: "main"}, wire.Handler{}); err == nil ||
		!strings.Contains(err.Error(), "no sandbox demo for you") {
		t.Errorf("bob: %v", err)
	}
	if _, err := open("agent", "demo", wire.Attach{Session: "main",
		Party: &wire.Party{Name: "root"}}, wire.Handler{}); err == nil {
		t.Error("a client can choose its identity")
	}
}

type streamOf struct {
	io.Reader
	io.WriteCloser
	s *ssh.Session
}

func (s streamOf) Close() error { return s.s.Close() }

// Output on a terminal for one command is recorded.
func TestOwnTerminalIsRecorded(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	got := outcome(t, w.ssh("alice", "-tt", "demo@127.0.0.1", "printf 'a\\nb\\n'; exit 7"), "")
	if got.exit != 7 || got.stdout != "a\r\nb\r\n" {
		t.Errorf("got %+v", got)
	}
	got = outcome(t, w.ssh("alice", "demo@127.0.0.1", "echo four"), "")
	if got.stdout != "four\n" {
		t.Errorf("got %+v", got)
	}
	records, err := w.hub.Sessions.Records(t.Context(), alicePerson, "demo")
	if err != nil || len(records) != 1 {
		t.Fatalf("records %+v, %v", records, err)
	}
	eventually(t, "both commands are events", func() bool {
		events, err := w.hub.Events(context.Background(), alicePerson, "demo", 100)
		if err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		for _, e := range events {
			all.Write(e.Data)
		}
		return strings.Contains(all.String(), "echo four") &&
			strings.Contains(all.String(), "exit 7")
	})
}

// Commands of the control host, with and without a terminal.
func TestControlHost(t *testing.T) {
	w := newWorld(t, worldOptions{commands: func(ctx context.Context, p gateway.Principal,
		c CommandIO) int {
		switch c.Args[0] {
		case "echo":
			io.WriteString(c.Stdout, strings.Join(c.Args[1:], "|")+"\n")
			io.WriteString(c.Stderr, "wrong\n")
		case "cat":
			io.Copy(c.Stdout, c.Stdin)
		case "hang":
			io.WriteString(c.Stdout, "hanging\n")
			<-ctx.Done()
			return 99
		}
		return 7
	}})
	got := outcome(t, w.ssh("alice", "sandboxd@127.0.0.1", `echo "a b" c\ d 'e"f' '$x'`), "")
	if got != (result{stdout: "a b|c d|e\"f|$x\n", stderr: "wrong\n", exit: 7}) {
		t.Errorf("got %+v", got)
	}
	got = outcome(t, w.ssh("alice", "sandboxd@127.0.0.1", "cat"), "line\n")
	if got != (result{stdout: "line\n", exit: 7}) {
		t.Errorf("got %+v", got)
	}
	got = outcome(t, w.ssh("alice", "-tt", "sandboxd@127.0.0.1", "echo x"), "")
	if got.exit != 7 || got.stdout != "x\r\nwrong\r\n" {
		t.Errorf("with a terminal: got %+v", got)
	}
	for _, line := range []string{`echo "unfinished`, ``} {
		if got := outcome(t, w.ssh("alice", "-T", "sandboxd@127.0.0.1", line),
			""); got.exit != 255 || !strings.HasPrefix(got.stderr, "sandboxd: ") {
			t.Errorf("%q: got %+v", line, got)
		}
	}
	s := w.sit("alice", "-t", "sandboxd@127.0.0.1", "hang")
	s.sees("hanging")
	s.types("\x03")
	if got := s.leaves(); got != 130 {
		t.Errorf("^C: exit status %d, want 130", got)
	}
}

// A forwarded agent is denied on a channel that joins a session, and no connection is opened for
// it.
func TestJoinRefusesAgent(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	go ssh.DiscardRequests(reqs)
	// As OpenSSH sends it: all at once.
	answer := make(chan bool, 1)
	go func() {
		ok, _ := ch.SendRequest("auth-agent-req@openssh.com", true, nil)
		answer <- ok
	}()
	ch.SendRequest("pty-req", false, wire.Marshal(wire.PtyReq{Term: "xterm", Cols: 80, Rows: 24}))
	ch.SendRequest("shell", false, nil)
	buf := make([]byte, 4096)
	if _, err := ch.Read(buf); err != nil {
		t.Fatal(err)
	}
	if <-answer {
		t.Error("the agent was granted")
	}
	ch.Close()
}

// A client that waits for each answer gets them, and the granted agent works.
func TestAgentAskedStepByStep(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	go ssh.DiscardRequests(reqs)
	for _, q := range []struct {
		name    string
		payload []byte
	}{
		{"auth-agent-req@openssh.com", nil},
		{"pty-req", wire.Marshal(wire.PtyReq{Term: "xterm", Cols: 80, Rows: 24})},
		{"env", wire.Marshal(wire.Env{Name: "LC_X", Value: "y"})},
	} {
		if ok, err := ch.SendRequest(q.name, true, q.payload); !ok || err != nil {
			t.Errorf("%s: %v, %v", q.name, ok, err)
		}
	}
	execute(t, ch, `test -S "$SSH_AUTH_SOCK" && echo "agent $LC_X"`)
	if got := readAll(t, ch); got != "agent y\r\n" {
		t.Errorf("got %q", got)
	}
}

// A command whose channel the client closes is canceled, and not only when its connection ends.
func TestControlHostChannelClosed(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	w := newWorld(t, worldOptions{commands: func(ctx context.Context, _ gateway.Principal,
		_ CommandIO) int {
		close(began)
		<-ctx.Done()
		close(ended)
		return 1
	}})
	session, err := w.dial("alice", "sandboxd").NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("new web"); err != nil {
		t.Fatal(err)
	}
	<-began
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the command goes on")
	}
}
