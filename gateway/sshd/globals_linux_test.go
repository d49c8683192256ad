package sshd

import (
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// hostkeys-00 of a sandbox is dropped, keepalives are answered on both sides, and every request
// gets an answer.
func TestRule4GlobalRequests(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	type answer struct {
		name string
		ok   bool
	}
	answers := make(chan answer, 8)
	w.play(func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		go ssh.DiscardRequests(reqs)
		sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
			started(reqs)
			for _, name := range []string{"hostkeys-00@openssh.com", "keepalive@openssh.com",
				"tcpip-forward", "control@sandboxd"} {
				ok, _, err := conn.SendRequest(
					name, true, wire.Marshal(wire.TCPForward{Host: "0.0.0.0", Port: 22}))
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				answers <- answer{name, ok}
			}
			ch.Close()
			ssh.DiscardRequests(reqs)
		})(conn, chans, nil)
	})
	conn, err := w.tryDial("alice", "demo")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, reqs := openSession(t, conn)
	go ssh.DiscardRequests(reqs)
	execute(t, ch, "x")
	for range 4 {
		if a := <-answers; a.ok != (a.name == "keepalive@openssh.com") {
			t.Errorf("the sandbox's %s was answered %v", a.name, a.ok)
		}
	}
	for name, want := range map[string]bool{"keepalive@openssh.com": true,
		"hostkeys-prove-00@openssh.com": false,
		"control@sandboxd":              false, "nonsense@example.com": false} {
		if ok, _, err := conn.SendRequest(name, true, nil); err != nil || ok != want {
			t.Errorf("the client's %s was answered %v, %v", name, ok, err)
		}
	}
}

// A thousand requests, with and without answers, block nothing.
func TestRule4ManyRequests(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	for i := range 1000 {
		if _, _, err := c.SendRequest("nonsense@example.com", i%2 == 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output("echo alive"); err != nil || string(out) != "alive\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

// After no-more-sessions there are none, and it is not passed on.
func TestRule4NoMoreSessions(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	if _, _, err := c.SendRequest("no-more-sessions@openssh.com", true, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.NewSession(); err == nil {
		t.Error("there was one more session")
	}
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Errorf("but forwards: %v", err)
	}
}
