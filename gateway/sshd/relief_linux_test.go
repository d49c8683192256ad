package sshd

import (
	"testing"

	"golang.org/x/crypto/ssh"
)

// When memory is short, only clients with much unread data are disconnected.
func TestRelief(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, c *ssh.Client){
		"sessions that are for nothing yet": func(t *testing.T, c *ssh.Client) {
			for i := range 4 {
				ch, requests, err := c.OpenChannel("session", nil)
				if err != nil && i > 0 {
					return // it was disconnected before the last
				} else if err != nil {
					t.Fatal(err)
				}
				go ssh.DiscardRequests(requests)
				_, _ = ch.Write(make([]byte, 1<<20)) // an error is expected
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
			w := newWorld(t, worldOptions{limits: Limits{Memory: 1}}) // always short
			w.sandbox("demo")
			other := w.dial("alice", "demo")
			c := w.dial("alice", "demo")
			fill(t, c)
			_ = c.Wait()
			s, err := other.NewSession()
			if err != nil {
				t.Fatal("a client without unread data: ", err)
			}
			if out, err := s.Output("echo alive"); err != nil || string(out) != "alive\n" {
				t.Errorf("a client without unread data: %q, %v", out, err)
			}
		})
	}
}
