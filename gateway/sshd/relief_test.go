package sshd

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// While memory is short whoever keeps much of it unread is sent away, and nobody else.
func TestRelief(t *testing.T) {
	tests := map[string]func(t *testing.T, c *ssh.Client){
		"sessions that are for nothing yet": func(t *testing.T, c *ssh.Client) {
			for range 4 {
				ch, requests := openSession(t, c)
				go ssh.DiscardRequests(requests)
				_, _ = ch.Write(make([]byte, 1<<20)) // an error is what comes
			}
		},
		"output that is not read": func(t *testing.T, c *ssh.Client) {
			ch, requests := openSession(t, c)
			go ssh.DiscardRequests(requests)
			execute(t, ch, "cat /dev/zero")
		},
	}
	for name, fill := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{limits: Limits{Memory: 1}}) // it is always short
			w.sandbox("demo")
			other := w.dial("alice", "demo")
			c := w.dial("alice", "demo")
			fill(t, c)
			_ = c.Wait()
			s, err := other.NewSession()
			if err != nil {
				t.Fatal("somebody who keeps nothing: ", err)
			}
			if out, err := s.Output("echo alive"); err != nil || string(out) != "alive\n" {
				t.Errorf("somebody who keeps nothing: %q, %v", out, err)
			}
		})
	}
}

// Whose connections keep most together, they go first, and no more of them than it takes.
func TestShed(t *testing.T) {
	const mib = 1 << 20
	limits := Limits{Memory: 60 * mib}.withDefaults()
	h := &house{Server: &Server{limits: limits, log: slog.New(slog.DiscardHandler), gate: newGate(limits)}, conns: make(map[*conn]struct{})}
	add := func(principal string, kept int64) *conn {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		n := newConn(a, &slot{gate: h.gate, since: time.Now()}, h.limits, h.left)
		n.principal = principal
		n.read.Store(kept)
		h.conns[n] = struct{}{}
		return n
	}
	large, small, least := add("bob", 10*mib), add("bob", 8*mib), add("bob", mib)
	alice := add("alice", 11*mib)
	if h.shed(15 * mib); len(h.conns) != 4 {
		t.Errorf("%d of 4 go on where it is not they who keep half of what there may be", len(h.conns))
	}
	alice.read.Add(mib)
	h.shed(15 * mib)
	if _, there := h.conns[large]; there {
		t.Error("the largest of the most goes on")
	}
	if _, there := h.conns[small]; there {
		t.Error("it was not enough, but the next one goes on")
	}
	if len(h.conns) != 2 {
		t.Errorf("%d go on, want that of alice and the one that keeps next to nothing", len(h.conns))
	}
	h.limits.Memory = 10 * mib
	h.shed(100 * mib)
	if _, there := h.conns[alice]; there {
		t.Error("it was not enough, but alice's goes on")
	}
	if _, there := h.conns[least]; !there {
		t.Error("one that keeps next to nothing was ended")
	}
}
