package sshd

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A session without a final request keeps a limited number of requests.
func TestWaitingRequests(t *testing.T) {
	for _, size := range []int{0, 200_000} {
		t.Run(fmt.Sprint(size, " bytes"), func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.sandbox("demo")
			client := w.dial("alice", "demo")
			ch, requests := openSession(t, client)
			go ssh.DiscardRequests(requests)
			var err error
			for n := 0; err == nil && n < 2000; n++ {
				// For the sandbox to answer, once the route of the channel is known.
				_, err = ch.SendRequest("x11-req", false, make([]byte, size))
			}
			ended := make(chan struct{})
			go func() {
				// Small ones may all be sent before the first one too many is read.
				_ = client.Wait()
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the connection is open with 2000 waiting requests")
			}
		})
	}
}

// A sandbox that sends requests on a channel whose client has sent no final request does not block
// the client's others.
func TestRequestsAhead(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
		for range 100 {
			_, _ = ch.SendRequest("x", false, nil)
		}
		if q, ok := <-reqs; ok {
			_ = q.Reply(true, nil)
			_, _ = ch.SendRequest("exit-status", false, exitStatus(7))
			_ = ch.Close()
			ssh.DiscardRequests(reqs)
		}
	}))
	c := w.dial("alice", "demo")
	command := func(s *ssh.Session) {
		t.Helper()
		out := make(chan error, 1)
		go func() { out <- s.Run("x") }()
		select {
		case err := <-out:
			if status, ok := errors.AsType[*ssh.ExitError](err); !ok || status.ExitStatus() != 7 {
				t.Errorf("got %v, want status 7", err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a command hangs")
		}
	}
	var waiting []*ssh.Session
	for i := range 4 { // the first has no channel at the sandbox before its final request
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if i == 1 || i == 2 {
			waiting = append(waiting, s)
			continue
		}
		command(s)
	}
	for _, s := range waiting {
		command(s)
	}
}

// A sandbox that sends many requests before it answers blocks nothing: a command runs, and one with
// too many ends its own connection.
func TestRequestsBeforeAnswer(t *testing.T) {
	for _, n := range []int{100, 500} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.sandbox("demo")
			w.play(sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
				for q := range reqs {
					for range n {
						_, _ = ch.SendRequest("x", false, nil)
					}
					_, _ = ch.SendRequest("exit-status", false, exitStatus(7))
					_ = q.Reply(true, nil)
					_ = ch.Close()
				}
			}))
			s, err := w.dial("alice", "demo").NewSession()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			out := make(chan error, 1)
			go func() { out <- s.Run("x") }()
			select {
			case err = <-out:
			case <-time.After(20 * time.Second):
				t.Fatal("the command hangs")
			}
			status, ok := errors.AsType[*ssh.ExitError](err)
			switch {
			case n == 100 && (!ok || status.ExitStatus() != 7):
				t.Errorf("got %v, want status 7", err)
			case n == 500 && (err == nil || ok && status.ExitStatus() == 7):
				t.Errorf("got %v, want that the sandbox was lost", err)
			}
		})
	}
}

// A command as long as a packet runs.
func TestLongCommand(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	s, err := w.dial("alice", "demo").NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output("echo alive #" + string(make128k())); err != nil ||
		string(out) != "alive\n" {
		t.Errorf("got %.80q, %v", out, err)
	}
}

// make128k returns a command as long as one argument may be on Linux, with room for what precedes
// it.
func make128k() []byte {
	b := make([]byte, 128<<10-100)
	for i := range b {
		b[i] = 'x'
	}
	return b
}

// The data of a channel open is not kept while the channel waits for its sandbox, unless it is
// short.
func TestLongOpening(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	long := string(make128k())
	for kind, extra := range map[string][]byte{
		"direct-tcpip":                   wire.Marshal(wire.DirectTCP{Host: long, Port: 1}),
		"direct-streamlocal@openssh.com": wire.Marshal(struct{ Path, Reserved string }{Path: long}),
		"tun@openssh.com":                []byte(long),
		"session":                        []byte(long),
	} {
		_, _, err := c.OpenChannel(kind, extra)
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || refused.Reason != ssh.Prohibited ||
			refused.Message != "channel open data is too long" {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// Whatever a sandbox grants, it listens on a limited number of addresses for one connection.
func TestListeners(t *testing.T) {
	u := &upstream{asked: make(map[string]int)}
	for port := range uint32(maxListeners) {
		u.expect(listenKey(wire.ChannelForwardedTCP, "", 1+port), 1)
	}
	ok, _, err := u.forward(&ssh.Request{Type: wire.GlobalTCPForward,
		Payload: wire.Marshal(wire.TCPForward{Host: "localhost", Port: 9999})})
	if ok || err == nil {
		t.Errorf("one more: %v, %v", ok, err)
	}
	c := &client{control: false, grant: &grant{}}
	if err := c.mayListen(&ssh.Request{Type: wire.GlobalUnixForward,
		Payload: wire.Marshal(wire.UnixForward{Path: string(make128k())})}); err == nil {
		t.Error("a path of 128 KiB may be listened on")
	}
}
