package sshd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The rules of the relay, each of which has broken a client. The tests are named after them.

// openSession opens a raw session channel at demo.
func openSession(t testing.TB, c *ssh.Client) (ssh.Channel, <-chan *ssh.Request) {
	t.Helper()
	ch, reqs, err := c.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	return ch, reqs
}

func execute(t testing.TB, ch ssh.Channel, command string) {
	t.Helper()
	if ok, err := ch.SendRequest("exec", true,
		wire.Marshal(wire.Exec{Command: command})); err != nil || !ok {
		t.Fatalf("exec: %v, %v", ok, err)
	}
}

func exitStatus(n uint32) []byte { return wire.Marshal(wire.ExitStatus{Status: n}) }

// exit-status, then the rest of the output, EOF, CLOSE (RFC 4254, section 6.10).
func TestRule1Order(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	rest := bytes.Repeat([]byte("0123456789"), 50_000)
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		ch.Write([]byte("before"))
		ch.SendRequest("exit-status", false, exitStatus(7))
		ch.Write(rest)
		ch.Stderr().Write(rest)
		ch.CloseWrite()
		ch.Close()
		ssh.DiscardRequests(reqs)
	}))
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	execute(t, ch, "x")
	var errs bytes.Buffer
	var all sync.WaitGroup
	all.Go(func() { io.Copy(&errs, ch.Stderr()) })
	out := readAll(t, ch)
	all.Wait()
	if out != "before"+string(rest) || errs.String() != string(rest) {
		t.Errorf("%d and %d bytes came, want %d and %d", len(out), errs.Len(), len(rest)+6,
			len(rest))
	}
	// Both streams have ended; the status arrived before.
	select {
	case q, ok := <-reqs:
		if !ok || q.Type != "exit-status" || !bytes.Equal(q.Payload, exitStatus(7)) {
			t.Errorf("got %+v, %v", q, ok)
		}
	default:
		t.Error("EOF came before exit-status")
	}
	if q, ok := <-reqs; ok {
		t.Errorf("after EOF came %s, want CLOSE", q.Type)
	}
}

// statusBeforeEOF reads a channel to its end. By then its exit status must be 44.
func statusBeforeEOF(t *testing.T, ch ssh.Channel, reqs <-chan *ssh.Request) {
	t.Helper()
	readAll(t, ch)
	select {
	case q := <-reqs:
		if q == nil || !bytes.Equal(q.Payload, exitStatus(44)) {
			t.Errorf("got %+v, want exit status 44", q)
		}
	default:
		t.Error("EOF came before exit-status")
	}
}

// OpenSSH's server sends the end of output, then the exit status. A client may close the channel at
// the first, so the gateway passes on the second before it.
func TestRule1StatusAfterEOF(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		ch.CloseWrite()
		ch.SendRequest("there@example.com", true, nil) // and back: EOF had its time
		ch.SendRequest("exit-status", false, exitStatus(44))
		ch.Close()
		ssh.DiscardRequests(reqs)
	}))
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	execute(t, ch, "x")
	if q := <-reqs; q == nil || q.Reply(true, nil) != nil {
		t.Fatalf("got %+v, want what the sandbox asked", q)
	}
	statusBeforeEOF(t, ch, reqs)
}

// However long that takes, for a client that sends no more.
func TestRule1StatusLongAfterEOF(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		io.Copy(io.Discard, ch)
		ch.CloseWrite()
		timer := time.NewTimer(beforeExit + time.Second) // the command runs without output
		defer timer.Stop()
		<-timer.C
		ch.SendRequest("exit-status", false, exitStatus(44))
		ch.Close()
		ssh.DiscardRequests(reqs)
	}))
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	execute(t, ch, "x")
	ch.CloseWrite()
	statusBeforeEOF(t, ch, reqs)
}

// EOF passes in each direction on its own.
func TestRule1HalfClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		ch.CloseWrite() // the command has closed its output, and still reads
		got, _ := io.ReadAll(ch)
		ch.SendRequest("exit-status", false, exitStatus(uint32(len(got))))
		ch.Close()
		ssh.DiscardRequests(reqs)
	}))
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	execute(t, ch, "x")
	if out := readAll(t, ch); out != "" {
		t.Errorf("out %q", out)
	}
	// Written after the other direction has ended.
	if _, err := io.WriteString(ch, "12345"); err != nil {
		t.Fatal(err)
	}
	ch.CloseWrite()
	if q := <-reqs; q == nil || !bytes.Equal(q.Payload, exitStatus(5)) {
		t.Errorf("got %+v, want exit status 5", q)
	}
}

// Unread stderr does not block standard output.
func TestRule1StderrIsPumped(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	const size = 5 << 20 // more than a window
	got := outcome(t, w.ssh("alice", "demo@127.0.0.1",
		fmt.Sprintf("head -c %d /dev/zero >&2; echo done", size)), "")
	if got.stdout != "done\n" || len(got.stderr) != size {
		t.Errorf("%q and %d bytes", got.stdout, len(got.stderr))
	}
}

// A request gets the sandbox's answer, and none if none is wanted.
func TestRule1WantReply(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	seen := make(chan string, 16)
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		for q := range reqs {
			seen <- fmt.Sprint(q.Type, q.WantReply, string(q.Payload))
			q.Reply(q.Type == "yes", nil)
		}
	}))
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	execute(t, ch, "x")
	for _, tt := range []struct {
		name string
		want bool
	}{{"yes", true}, {"no", false}, {"break@example.com", false}} {
		got, err := ch.SendRequest(tt.name, true, []byte("p"))
		if err != nil || got != tt.want {
			t.Errorf("%s: got %v, %v", tt.name, got, err)
		}
		if s, want := <-seen, tt.name+"truep"; s != want {
			t.Errorf("sandbox saw %s, want %s", s, want)
		}
	}
	if _, err := ch.SendRequest("signal", false,
		wire.Marshal(wire.Signal{Name: "TERM"})); err != nil {
		t.Fatal(err)
	}
	if s := <-seen; !strings.HasPrefix(s, "signalfalse") {
		t.Errorf("sandbox saw %s", s)
	}
	// Requests between daemon and guest are not available to clients.
	if ok, err := ch.SendRequest("control@sandboxd", true, nil); ok || err != nil {
		t.Errorf("control@sandboxd: %v, %v", ok, err)
	}
	ch.Close()
	ssh.DiscardRequests(reqs)
	select {
	case s := <-seen:
		t.Errorf("sandbox saw %s", s)
	default:
	}
}

// The sandbox's requests go to the client, with their answers.
func TestRule1RequestsOfTheSandbox(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	answers := make(chan bool, 2)
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		for _, name := range []string{"keepalive@openssh.com", "secret@sandboxd"} {
			ok, _ := ch.SendRequest(name, true, nil)
			answers <- ok
		}
		ch.Close()
		ssh.DiscardRequests(reqs)
	}))
	ch, reqs := openSession(t, w.dial("alice", "demo"))
	execute(t, ch, "x")
	var saw []string
	for q := range reqs {
		saw = append(saw, q.Type)
		q.Reply(true, nil)
	}
	if len(saw) != 1 || saw[0] != "keepalive@openssh.com" {
		t.Errorf("the client saw %q", saw)
	}
	if one, two := <-answers, <-answers; !one || two {
		t.Errorf("the sandbox was answered %v, %v", one, two)
	}
}

// A session channel is confirmed at once, before the sandbox answers. The client's requests wait
// meanwhile, in any number, and other channels continue.
func TestRule2ConfirmedAtOnce(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	boot := make(chan struct{})
	w.backend.delay.Store(&boot)
	c := w.dial("alice", "demo")
	ch, reqs := openSession(t, c)
	go ssh.DiscardRequests(reqs)
	for range 100 { // more than the library keeps
		if _, err := ch.SendRequest("env", false,
			wire.Marshal(wire.Env{Name: "LC_X", Value: "y"})); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan string, 1)
	go func() {
		ok, err := ch.SendRequest("exec", true, wire.Marshal(wire.Exec{Command: "echo $LC_X; cat"}))
		if !ok || err != nil {
			done <- fmt.Sprint(ok, err)
			return
		}
		b, _ := io.ReadAll(ch)
		done <- string(b)
	}()
	for range 40 {
		ch.SendRequest("window-change", false, wire.Marshal(wire.WindowChange{Cols: 80, Rows: 24}))
	}
	// The connection stays open and alive while the sandbox boots.
	if _, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		t.Fatal(err)
	}
	other, otherReqs := openSession(t, c)
	go ssh.DiscardRequests(otherReqs)
	other.Close()
	io.WriteString(ch, "typed ahead")
	ch.CloseWrite()
	close(boot)
	if got := <-done; got != "y\ntyped ahead" {
		t.Errorf("got %q", got)
	}
}

// Without a terminal a failure is one line on stderr and exit status 255, with no standard output.
func TestRule2FailureIsOneLine(t *testing.T) {
	w := newWorld(t, worldOptions{})
	for _, args := range [][]string{{"nosuch@127.0.0.1", "true"}, {"-T", "nosuch@127.0.0.1"},
		{"-s", "nosuch@127.0.0.1", "sftp"}} {
		got := outcome(t, w.ssh("alice", args...), "")
		want :=
			result{stderr: "sandboxd: no sandbox nosuch for you; create it: ssh sandboxd@gw new nosuch\n", exit: 255}
		if got != want {
			t.Errorf("%q: got %+v, want %+v", args, got, want)
		}
	}
	// Other channel types fail with the reason.
	_, err := w.dial("alice", "nosuch").Dial("tcp", "127.0.0.1:1")
	var refused *ssh.OpenChannelError
	if !errors.As(err, &refused) || !strings.Contains(
		refused.Message, "no sandbox nosuch for you") {
		t.Errorf("got %v", err)
	}
}

// A refusal has a reason.
func TestRule3Refusals(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for _, tt := range []struct{ key, user, channel, want string }{
		{"watch", "demo", "direct-tcpip", "only watch"},
		{"watch", "demo", "direct-streamlocal@openssh.com", "only watch"},
		{"watch", "demo", "tun@openssh.com", "only watch"},
		{"alice", "sandboxd", "direct-tcpip", "control host"},
		{"alice", "demo", "auth-agent@openssh.com", "clients cannot open"},
		{"alice", "demo", "x11", "clients cannot open"},
		{"alice", "demo", "forwarded-tcpip", "clients cannot open"},
		{"alice", "demo", "egress@sandboxd", "clients cannot open"},
		{"alice", "demo", "nonsense@example.com", "unknown channel type"}, // the sandbox's own text
	} {
		extra := wire.Marshal(wire.DirectTCP{Host: "127.0.0.1", Port: 1})
		if strings.HasPrefix(tt.channel, "direct-stream") {
			extra = wire.Marshal(wire.DirectUnix{Path: "/x"})
		}
		_, _, err := w.dial(tt.key, tt.user).OpenChannel(tt.channel, extra)
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || !strings.Contains(refused.Message, tt.want) {
			t.Errorf("%+v: got %v", tt, err)
		}
	}
}

// Channels that a sandbox opens without a request are refused, for each type until the client
// requests it.
func TestRule5OnlyWhatWasAsked(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	refusals := make(chan string, 16)
	try := func(conn *ssh.ServerConn, what string, extra []byte) {
		ch, reqs, err := conn.OpenChannel(what, extra)
		if err == nil {
			ch.Close()
			ssh.DiscardRequests(reqs)
			refusals <- what + " was opened"
			return
		}
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) {
			refusals <- fmt.Sprint(what, err)
			return
		}
		refusals <- ""
	}
	w.play(func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		go func() {
			for q := range reqs {
				q.Reply(true, nil)
			}
		}()
		sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
			started(reqs)
			try(conn, "auth-agent@openssh.com", nil)
			try(conn, "x11", wire.Marshal(struct {
				Host string
				Port uint32
			}{"127.0.0.1", 6000}))
			try(conn, "forwarded-tcpip",
				wire.Marshal(wire.DirectTCP{Host: "127.0.0.1", Port: 4444}))
			try(conn, "forwarded-tcpip", wire.Marshal(wire.DirectTCP{Host: "127.0.0.1", Port: 22}))
			try(conn, "forwarded-tcpip", []byte("x"))
			try(conn, "forwarded-streamlocal@openssh.com",
				wire.Marshal(wire.ForwardedUnix{Path: "/x"}))
			try(conn, "session", nil)
			try(conn, "direct-tcpip", wire.Marshal(wire.DirectTCP{Host: "127.0.0.1", Port: 22}))
			ch.Close()
			ssh.DiscardRequests(reqs)
		})(conn, chans, nil)
	})
	c := w.dial("alice", "demo")
	// The client requested this port, and would accept connections to any.
	if ok, _, err := c.SendRequest("tcpip-forward", true,
		wire.Marshal(wire.TCPForward{Host: "127.0.0.1", Port: 4445})); err != nil || !ok {
		t.Fatal(ok, err)
	}
	for _, kind := range []string{"auth-agent@openssh.com", "x11", "forwarded-tcpip",
		"forwarded-streamlocal@openssh.com"} {
		go func() {
			for nc := range c.HandleChannelOpen(kind) {
				t.Errorf("the client was asked for %s", nc.ChannelType())
				nc.Reject(ssh.Prohibited, "no")
			}
		}()
	}
	ch, reqs := openSession(t, c)
	go ssh.DiscardRequests(reqs)
	execute(t, ch, "x")
	for range 8 {
		if r := <-refusals; r != "" {
			t.Error(r)
		}
	}
}

// A command is over when it ends, not when the last process that holds its pipe does.
func TestRule6BackgroundChild(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	began := time.Now()
	got := outcome(t, w.ssh("alice", "demo@127.0.0.1", "sleep 45 & echo hi"), "")
	if got != (result{stdout: "hi\n"}) {
		t.Errorf("got %+v", got)
	}
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("took %v", took)
	}
	// Also if the sandbox's sshd waits for the pipe, as OpenSSH's does, or never closes.
	for _, eof := range []bool{false, true} {
		w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
			started(reqs)
			io.WriteString(ch, "hi\n")
			ch.SendRequest("exit-status", false, exitStatus(3))
			if eof {
				ch.CloseWrite()
			}
			ssh.DiscardRequests(reqs)
		}))
		began = time.Now()
		got = outcome(t, w.ssh("alice", "demo@127.0.0.1", "x"), "")
		if got != (result{stdout: "hi\n", exit: 3}) {
			t.Errorf("eof %v: got %+v", eof, got)
		}
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("eof %v: took %v", eof, took)
		}
	}
}

// A client's environment is restricted to an allow-list.
func TestRule7Environment(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	ch, reqs := openSession(t, c)
	go ssh.DiscardRequests(reqs)
	for name, want := range map[string]bool{
		"LANG": true, "LC_ALL": true, "LC_A1": true, "TERM": true, "COLORTERM": true, "GIT_PROTOCOL": true,
		"LD_PRELOAD": false, "LD_LIBRARY_PATH": false, "BASH_ENV": false, "ENV": false, "PATH": false, "SSH_CONNECTION": false,
		"IFS": false, "LC_": false, "LC_a": false, "lang": false, "": false, "LANG=x": false, "LC_A\n": false, "HOME": false,
	} {
		if ok, err := ch.SendRequest("env", true,
			wire.Marshal(wire.Env{Name: name, Value: "marked"})); err != nil || ok != want {
			t.Errorf("%q: got %v, %v", name, ok, err)
		}
	}
	for value, want := range map[string]bool{"": true, "x y": true,
		strings.Repeat("x", 4<<10):   true,
		strings.Repeat("x", 4<<10+1): false, strings.Repeat("x", 100<<10): false, "a\nb": false,
		"a\x00b": false} {
		if ok, err := ch.SendRequest("env", true,
			wire.Marshal(wire.Env{Name: "LC_V", Value: value})); err != nil || ok != want {
			t.Errorf("value of %d bytes: got %v, %v", len(value), ok, err)
		}
	}
	granted := 0
	for i := range 10_000 {
		ok, err := ch.SendRequest("env", true,
			wire.Marshal(wire.Env{Name: fmt.Sprintf("LC_N%d", i), Value: "x"}))
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			granted++
		}
	}
	if granted > maxEnv {
		t.Errorf("%d variables were taken", granted)
	}
	execute(t, ch, "env")
	if out := readAll(t, ch); strings.Count(out, "marked") != 6 {
		t.Errorf("the command saw:\n%s", out)
	}
}

// An invalid exit status, and two of them.
func TestOddExitStatus(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		ch.SendRequest("exit-status", false, []byte{1})
		ch.SendRequest("exit-status", true, nil)
		ch.SendRequest("exit-signal", false, []byte("x"))
		ch.SendRequest("exit-status", false, exitStatus(4))
		ch.SendRequest("exit-status", false, exitStatus(5))
		io.WriteString(ch, "after")
		ch.Close()
		ssh.DiscardRequests(reqs)
	}))
	got := outcome(t, w.ssh("alice", "demo@127.0.0.1", "x"), "")
	if got != (result{stdout: "after", exit: 4}) {
		t.Errorf("got %+v", got)
	}
}

// The sandbox's sshd dies during a command: the command fails, the connection stays, and the next
// command works.
func TestSandboxGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		go ssh.DiscardRequests(reqs)
		nc, ok := <-chans
		if !ok {
			return
		}
		ch, requests, err := nc.Accept()
		if err != nil {
			return
		}
		started(requests)
		io.WriteString(ch, "half")
	})
	c := w.dial("alice", "demo")
	ch, reqs := openSession(t, c)
	execute(t, ch, "x")
	out := readAll(t, ch)
	if q, ok := <-reqs; ok || out != "half" {
		t.Errorf("got %q and %+v, want the half and CLOSE", out, q)
	}
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		started(reqs)
		ch.SendRequest("exit-status", false, exitStatus(0))
		ch.Close()
		ssh.DiscardRequests(reqs)
	}))
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run("x"); err != nil {
		t.Errorf("the next command: %v", err)
	}
}
