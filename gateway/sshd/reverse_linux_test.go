package sshd

import (
	"io"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// A channel type that the client requested may be opened while the requesting channel lasts, and
// not on other clients' connections.
func TestRule5WhileItLasts(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	opened := make(chan error, 8)
	again := make(chan struct{})
	w.play(func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		go ssh.DiscardRequests(reqs)
		open := func(what string) {
			ch, requests, err := conn.OpenChannel(what, nil)
			if err == nil {
				io.WriteString(ch, what)
				ch.Close()
				ssh.DiscardRequests(requests)
			}
			opened <- err
		}
		sessions(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
			q, ok := started(reqs)
			if !ok {
				return
			}
			what := strings.TrimSpace(string(q.Payload[4:]))
			open(what)
			ch.Close()
			ssh.DiscardRequests(reqs)
			if <-again; what == "x11" {
				open(what)
			}
		})(conn, chans, nil)
	})
	ask := func(c *ssh.Client, request, what string) {
		t.Helper()
		ch, reqs := openSession(t, c)
		if request != "" {
			if ok, err := ch.SendRequest(request, true, nil); !ok || err != nil {
				t.Fatalf("%s: %v, %v", request, ok, err)
			}
		}
		execute(t, ch, what)
		ssh.DiscardRequests(reqs)
	}
	one := w.dial("alice", "demo")
	for _, kind := range []string{"x11", "auth-agent@openssh.com"} {
		incoming := one.HandleChannelOpen(kind)
		go func() {
			for nc := range incoming {
				if ch, requests, err := nc.Accept(); err == nil {
					go ssh.DiscardRequests(requests)
					io.Copy(io.Discard, ch)
					ch.Close()
				}
			}
		}()
	}
	ask(one, "x11-req", "x11")
	ask(one, "auth-agent-req@openssh.com", "auth-agent@openssh.com")
	for range 2 {
		if err := <-opened; err != nil {
			t.Errorf("asked for: %v", err)
		}
	}
	two := w.dial("alice", "demo")
	ask(two, "", "x11")
	if err := <-opened; err == nil {
		t.Error("another connection's sandbox opened it")
	}
	close(again)
	for range 2 { // x11 of both connections, after the requesting channel has ended
		if err := <-opened; err == nil {
			t.Error("opened after its channel had ended")
		}
	}
}

// -J through a sandbox is a forward in the sandbox's network. Through the control host it is
// refused with a reason.
func TestJump(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for user, want := range map[string]string{"sandboxd": "the control host does not forward",
		"nosuch": "no sandbox nosuch"} {
		_, err := w.dial("alice", user).Dial("tcp", "127.0.0.1:"+w.port)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("by %s: %v", user, err)
		}
	}
	// The in-memory sandbox's network is this machine's, so the way through it leads back here.
	proxy := "ssh " + strings.Join(w.sshOptions("alice"), " ") + " -W %h:%p demo@127.0.0.1"
	got := outcome(t, w.ssh("alice", "-o", "ProxyCommand="+proxy, "demo@127.0.0.1",
		"echo through; exit 4"), "")
	if got != (result{stdout: "through\n", exit: 4}) {
		t.Errorf("got %+v", got)
	}
}

// A listener that is lost with its sandbox ends the client's connection, which would wait
// indefinitely.
func TestListenerIsLost(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	if _, err := c.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	idle := w.dial("alice", "demo")
	s, err := idle.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run("true"); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.Stop(t.Context(), alicePerson, "demo"); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("the connection ended without an error")
	}
	// A client without a listener stays; the sandbox starts again for it.
	if s, err = idle.NewSession(); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output("echo again"); err != nil || string(out) != "again\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
