package sshd

import (
	"fmt"
	"io"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// output runs command on c and returns its output.
func output(t *testing.T, c *ssh.Client, command string) string {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.CombinedOutput(command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// A sandbox gets one channel for each command, and none for channels that do not need it.
func TestOneChannelForEachCommand(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	// closed: whether a program was started
	opened, closed := make(chan struct{}, 16), make(chan bool, 16)
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
	runs := func(command string) {
		t.Helper()
		ch, reqs := openSession(t, c)
		execute(t, ch, command)
		go ssh.DiscardRequests(reqs)
		if out, err := io.ReadAll(ch); string(out) != command || err != nil {
			t.Errorf("%s: %q, %v", command, out, err)
		}
		_ = ch.Close()
		if !<-closed {
			t.Errorf("%s was not started", command)
		}
		<-opened
	}
	runs("first")
	runs("second")

	ch, reqs := openSession(t, c) // without a request
	_ = ch.Close()
	ssh.DiscardRequests(reqs)

	ch, reqs = openSession(t, c) // for a request that clients may not send
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest("subsystem", true,
		ssh.Marshal(struct{ Name string }{"control@sandboxd"})); err != nil {
		t.Fatal(ok, err)
	}
	_ = ch.Close()

	runs("third")
	if n := len(opened) + len(closed); n != 0 {
		t.Errorf("%d channels too many", n)
	}
}

// A command on a sandbox connection that has ended runs on another.
func TestChannelOfTheEnd(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	w.play(func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		one := make(chan ssh.NewChannel, 1)
		if nc, ok := <-chans; ok {
			one <- nc
		}
		close(one)
		sessions(func(ch ssh.Channel, requests <-chan *ssh.Request) {
			if _, ok := started(requests); ok {
				_, _ = io.WriteString(ch, "served")
				_, _ = ch.SendRequest("exit-status", false, exitStatus(0))
			}
			_ = ch.Close()
			ssh.DiscardRequests(requests)
			<-chans
			conn.Close()
		})(conn, one, reqs)
	})
	c := w.dial("alice", "demo")
	for range 20 {
		if got := output(t, c, "x"); got != "served" {
			t.Fatalf("got %q", got)
		}
	}
}

// Commands and terminals, one after the other and many at once, have their own streams.
func TestChannelsAtOnce(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	for i := range 3 {
		if got, want := output(t, c, fmt.Sprintf("echo %d; cat", i)),
			fmt.Sprintf("%d\n", i); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		terminal, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if err := terminal.RequestPty("xterm", 24, 80, nil); err != nil {
			t.Fatal(err)
		}
		if out, err := terminal.CombinedOutput("test -t 0 && echo a terminal"); string(
			out) != "a terminal\r\n" || err != nil {
			t.Errorf("got %q, %v, want a terminal", out, err)
		}
		terminal.Close()
	}
	for round := range 20 {
		got := make(chan string, 4)
		for i := range cap(got) {
			go func() {
				s, err := c.NewSession()
				if err != nil {
					got <- err.Error()
					return
				}
				defer s.Close()
				out, err := s.CombinedOutput(fmt.Sprintf("echo %d", i))
				if want := fmt.Sprintf("%d\n", i); string(out) != want || err != nil {
					got <- fmt.Sprintf("got %q, %v, want %q", out, err, want)
					return
				}
				got <- ""
			}()
		}
		for range cap(got) {
			if problem := <-got; problem != "" {
				t.Errorf("round %d: %s", round, problem)
			}
		}
	}
}

// A sandbox that sends requests on a new channel, fills it or closes it does not block the
// connection: commands still run.
func TestHostileChannel(t *testing.T) {
	for name, spoil := range map[string]func(ssh.Channel){
		"requests": func(ch ssh.Channel) {
			for range 100 { // a queue holds 16
				_, _ = ch.SendRequest("x", false, nil)
			}
		},
		"data, and a request": func(ch ssh.Channel) {
			_, _ = ch.Write(make([]byte, 1<<20))
			_, _ = ch.SendRequest("x", false, nil)
		},
		"close": func(ch ssh.Channel) { _ = ch.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.sandbox("demo")
			n := 0
			spoiled := make(chan bool, 64)
			w.playPassing(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
				spoils := <-spoiled
				if spoils {
					spoil(ch)
				}
				if q, ok := <-reqs; ok {
					_ = q.Reply(true, nil)
					_, _ = ch.SendRequest("exit-status", false, exitStatus(0))
					if spoils {
						ssh.DiscardRequests(reqs)
					}
				}
				_ = ch.Close()
				ssh.DiscardRequests(reqs)
			})
			c := w.dial("alice", "demo")
			for range 6 {
				n++
				spoiled <- n%2 == 1
				s, err := c.NewSession()
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- s.Run("x") }()
				select {
				case err := <-done:
					if err != nil && n%2 == 0 {
						t.Errorf("a command after a failed one: %v", err)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("a command hangs")
				}
				s.Close()
			}
			c.Close()
		})
	}
}
