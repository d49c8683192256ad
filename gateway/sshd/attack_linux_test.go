package sshd

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// With a watch key, everything but watching is denied, with the reason.
func TestWatchOnly(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for _, args := range [][]string{
		{"demo@127.0.0.1", "id"},
		{"-tt", "demo@127.0.0.1", "id"},
		{"-T", "demo@127.0.0.1"},
		{"-s", "demo@127.0.0.1", "sftp"},
		{"-tt", "demo~new@127.0.0.1"},
	} {
		got := outcome(t, w.ssh("watch", args...), "")
		if got.exit != 255 || !strings.Contains(got.stdout+got.stderr, "may only watch") {
			t.Errorf("%q: got %+v", args, got)
		}
	}
	c := w.dial("watch", "demo")
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err == nil {
		t.Error("listens")
	}
	if _, err := c.ListenUnix("/tmp/x"); err == nil {
		t.Error("listens on a socket")
	}
	ch, reqs := openSession(t, c)
	go ssh.DiscardRequests(reqs)
	for _, name := range []string{"auth-agent-req@openssh.com", "x11-req"} {
		if ok, err := ch.SendRequest(name, true, nil); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

// Key options that forbid one thing each.
func TestKeyOptions(t *testing.T) {
	w := newWorld(t, worldOptions{options: map[string]string{
		"bob":   `principal="alice",command="echo forced",no-pty`,
		"agent": `principal="alice",restrict,permitopen="127.0.0.1:9"`,
	}})
	w.sandbox("demo")
	for _, args := range [][]string{{"demo@127.0.0.1", "id"}, {"-T", "demo@127.0.0.1"},
		{"-s", "demo@127.0.0.1", "sftp"}} {
		if got := outcome(t, w.ssh("bob", args...), ""); got != (result{stdout: "forced\n"}) {
			t.Errorf("%q: got %+v", args, got)
		}
	}
	ch, reqs := openSession(t, w.dial("bob", "demo"))
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest("pty-req", true,
		wire.Marshal(wire.PtyReq{Term: "x", Cols: 80, Rows: 24})); ok || err != nil {
		t.Errorf("no-pty: %v, %v", ok, err)
	}
	c := w.dial("agent", "demo")
	if _, err := c.Dial("tcp", "127.0.0.1:9"); err == nil ||
		!strings.Contains(err.Error(), "does not allow forwarding") {
		t.Errorf("restrict: %v", err)
	}
	ch, reqs = openSession(t, c)
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest("auth-agent-req@openssh.com", true, nil); ok || err != nil {
		t.Errorf("restrict, agent: %v, %v", ok, err)
	}
}

// A foreign and a missing sandbox return the same text in the same time.
func TestUnknownIsForbidden(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	said := map[string]string{}
	for _, name := range []string{"demo", "none"} {
		for _, key := range []string{"bob"} {
			got := outcome(t, w.ssh(key, name+"@127.0.0.1", "true"), "")
			said[name] = strings.ReplaceAll(fmt.Sprintf("%+v", got), name, "NAME")
		}
	}
	if said["demo"] != said["none"] {
		t.Errorf("forbidden: %s\nunknown: %s", said["demo"], said["none"])
	}
}

// A hundred channels with data that nobody reads: the connection's budget ends the largest, others
// continue.
func TestUnreadBudget(t *testing.T) {
	w := newWorld(t, worldOptions{limits: Limits{Unread: 8 << 20}})
	w.sandbox("demo")
	release := make(chan struct{})
	var serving sync.WaitGroup
	defer serving.Wait()
	defer close(release)
	w.play(func(_ *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		go ssh.DiscardRequests(reqs)
		for nc := range chans {
			ch, requests, err := nc.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { ssh.DiscardRequests(requests) })
			_ = ch // nobody reads it
		}
	})
	c := w.dial("alice", "demo")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var closed, writing sync.WaitGroup
	ended := make(chan struct{}, 100)
	for range 100 {
		ch, requests, err := c.OpenChannel(
			"direct-tcpip", wire.Marshal(wire.DirectTCP{Host: "127.0.0.1", Port: 1}))
		if err != nil {
			t.Fatal(err)
		}
		closed.Go(func() { ssh.DiscardRequests(requests); ended <- struct{}{} })
		// Two windows, and data under way.
		writing.Go(func() { ch.Write(make([]byte, 4<<20+64<<10)) })
	}
	<-ended // the largest ends…
	other := w.dial("alice", "sandboxd")
	if got := whoami(t, other); got != "alice" {
		t.Errorf("another connection: %q", got)
	}
	if _, _, err := c.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		t.Errorf("…and not the connection: %v", err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d channels ended, %d MiB more in use on all sides", len(ended)+1,
		(int64(after.HeapInuse)-int64(before.HeapInuse))>>20)
	c.Close()
	writing.Wait()
	closed.Wait()
}

// The number of sessions and channels of a connection is limited.
func TestChannelLimits(t *testing.T) {
	w := newWorld(t, worldOptions{limits: Limits{Sessions: 3, Channels: 5}})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	open := func() (ssh.Channel, error) {
		ch, reqs, err := c.OpenChannel("session", nil)
		if err == nil {
			go ssh.DiscardRequests(reqs)
		}
		return ch, err
	}
	var all []ssh.Channel
	for range 3 {
		ch, err := open()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ch)
	}
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "limit of 3 sessions") {
		t.Errorf("a fourth session: %v", err)
	}
	all[0].Close()
	eventually(t, "its place is free", func() bool {
		ch, err := open()
		if err == nil {
			ch.Close()
		}
		return err == nil
	})
}

// A client that has seen a session closed may open another at once.
func TestSessionPlace(t *testing.T) {
	const most = 3
	w := newWorld(t, worldOptions{limits: Limits{Sessions: most}})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	var all sync.WaitGroup
	for range most {
		all.Go(func() {
			for range 50 {
				ch, reqs, err := c.OpenChannel("session", nil)
				if err != nil {
					t.Errorf("one of %d at once: %v", most, err)
					return
				}
				if ok, err := ch.SendRequest("exec", true,
					ssh.Marshal(struct{ Command string }{"true"})); !ok || err != nil {
					t.Errorf("exec: %v, %v", ok, err)
				}
				for range reqs { // until CLOSE
				}
			}
		})
	}
	all.Wait()
}

// A client that answers no keepalives is disconnected.
func TestKeepalive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{limits: Limits{Keepalive: time.Second, KeepaliveMax: 3}})
	w.sandbox("demo")
	// A client that answers, silent for longer.
	c := w.dial("alice", "demo")
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output("sleep 5; echo alive"); err != nil || string(out) != "alive\n" {
		t.Errorf("got %q, %v", out, err)
	}
	// A client that does not: its process is stopped.
	ssh := w.ssh("alice", "demo@127.0.0.1", "echo ready; sleep 60")
	startReady(t, ssh, "ready")
	if err := ssh.Process.Signal(stopSignal); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gateway lets go of it",
		func() bool { return w.log.contains("client is gone") })
}

// Thousands of window-changes, before there is a terminal and of any size.
func TestWindowFlood(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	ch, reqs := openSession(t, c)
	go ssh.DiscardRequests(reqs)
	window := func(cols, rows uint32) []byte {
		return wire.Marshal(wire.WindowChange{Cols: cols, Rows: rows})
	}
	if ok, err := ch.SendRequest("window-change", true, window(80, 24)); ok || err != nil {
		t.Errorf("before pty-req: %v, %v", ok, err)
	}
	if ok, err := ch.SendRequest("pty-req", true, wire.Marshal(wire.PtyReq{Term: "xterm"})); !ok ||
		err != nil {
		t.Fatalf("pty-req: %v, %v", ok, err)
	}
	execute(t, ch, `echo ready; read x; stty size; exit 7`)
	var out bytes.Buffer
	buf := make([]byte, 7)
	if _, err := io.ReadFull(ch, buf); err != nil || !strings.HasPrefix(string(buf), "ready") {
		t.Fatalf("%q, %v", buf, err)
	}
	for i := range 5000 {
		if _, err := ch.SendRequest("window-change", false,
			window(uint32(i), 1<<32-1)); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := ch.SendRequest("window-change", true, window(1<<32-1, 33)); !ok || err != nil {
		t.Errorf("the last one: %v, %v", ok, err)
	}
	io.WriteString(ch, "\n")
	io.Copy(&out, ch)
	if !strings.Contains(out.String(), "33 1000") {
		t.Errorf("got %q", out.String())
	}
}
