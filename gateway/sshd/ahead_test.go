package sshd

import (
	"io"
	"testing"

	"golang.org/x/crypto/ssh"
)

// The second command of a connection finds its channel at the sandbox open: that was asked for when the client opened its own. One
// that the client does not need is closed.
func TestChannelAhead(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	opened, closed := make(chan struct{}, 16), make(chan bool, 16) // closed: whether something was started
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		opened <- struct{}{}
		q, ok := started(reqs)
		if ok {
			_, _ = ch.Write(q.Payload[4:])
			_, _ = ch.SendRequest("exit-status", false, exitStatus(0))
		}
		_ = ch.Close()
		ssh.DiscardRequests(reqs)
		closed <- ok
	}))
	c := w.dial("alice", "demo")
	runs := func(ch ssh.Channel, reqs <-chan *ssh.Request, command string) {
		t.Helper()
		execute(t, ch, command)
		go ssh.DiscardRequests(reqs)
		if out, err := io.ReadAll(ch); string(out) != command || err != nil {
			t.Errorf("%s: %q, %v", command, out, err)
		}
		_ = ch.Close()
		if !<-closed {
			t.Errorf("%s was not started", command)
		}
	}
	ch, reqs := openSession(t, c)
	runs(ch, reqs, "first")
	<-opened

	ch, reqs = openSession(t, c)
	<-opened // before the client has said anything
	runs(ch, reqs, "second")

	ch, reqs = openSession(t, c)
	<-opened
	_ = ch.Close()
	ssh.DiscardRequests(reqs)
	if <-closed {
		t.Error("something was started on a channel that was not used")
	}

	if n := len(opened) + len(closed); n != 0 {
		t.Errorf("%d channels too many", n)
	}
}

// What needs none gives the channel back at once.
func TestChannelAheadForNothing(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	closed := make(chan bool, 16)
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		_, ok := started(reqs)
		_ = ch.Close()
		ssh.DiscardRequests(reqs)
		closed <- ok
	}))
	c := w.dial("alice", "demo")
	ch, reqs := openSession(t, c)
	execute(t, ch, "x")
	if !<-closed {
		t.Fatal("not started")
	}
	_ = ch.Close()
	ssh.DiscardRequests(reqs)

	ch, reqs = openSession(t, c)
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest("subsystem", true, ssh.Marshal(struct{ Name string }{"control@sandboxd"})); err != nil {
		t.Fatal(ok, err)
	}
	if <-closed {
		t.Error("what is not for clients was started")
	}
}

// Of a connection that has ended no channel is taken, open or not.
func TestChannelAheadOfTheEnd(t *testing.T) {
	u := &upstream{ended: make(chan struct{})}
	close(u.ended)
	for range 100 { // which of two is received from is chance
		p := &pendingChannel{u: u, answered: make(chan openedChannel, 1)}
		p.answered <- openedChannel{}
		if _, _, err := p.wait(); err == nil {
			t.Fatal("a channel of a connection that has ended")
		}
	}
}
