package sshd

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// output runs command on c and returns what it prints.
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

// A client's third command finds a spare, which its second had made. A terminal takes none, and leaves it for the next command.
func TestSpare(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	taken := func() int { return strings.Count(w.log.String(), `msg="spare taken"`) }

	for i := range 2 {
		if got, want := output(t, c, fmt.Sprintf("echo %d", i)), fmt.Sprintf("%d\n", i); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if n := taken(); n != 0 {
		t.Errorf("%d of two commands found a spare", n)
	}
	eventually(t, "a command that finds a spare", func() bool {
		if got := output(t, c, "echo it is there; cat"); got != "it is there\n" {
			t.Errorf("got %q", got)
		}
		return taken() > 0
	})

	terminal, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	if err := terminal.RequestPty("xterm", 24, 80, nil); err != nil {
		t.Fatal(err)
	}
	if out, err := terminal.CombinedOutput("test -t 0 && echo a terminal"); string(out) != "a terminal\r\n" || err != nil {
		t.Errorf("got %q, %v, want a terminal", out, err)
	}
	eventually(t, "a command that finds a spare behind a terminal", func() bool {
		before := taken()
		output(t, c, "true")
		return taken() > before
	})
}

// Two commands at once get a channel each, whoever has the spare.
func TestSpareForOne(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
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

// What is kept is one spare, for as long as its connection and the sandbox want it, and no longer than a minute.
func TestSpareIsGivenBack(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	conn, err := w.hub.Upstream(t.Context(), gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightDrive}, "demo", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go ssh.DiscardRequests(conn.Reqs)
	u := &upstream{conn: conn, ended: make(chan struct{})}
	settled := func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return !u.sparing
	}
	prepared := func() *spare {
		t.Helper()
		eventually(t, "that the one before is closed", settled)
		u.prepare()
		u.prepare() // makes no second one
		eventually(t, "a spare", u.hasSpare)
		return u.spare
	}
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	u.lose(prepared()) // from here on nothing is made that stays
	eventually(t, "that it is closed", settled)
	before := open()
	nothing := func(after string) {
		t.Helper()
		eventually(t, "no spare after "+after, func() bool { return !u.hasSpare() && settled() })
		eventually(t, "descriptors as before "+after, func() bool { return open() <= before })
		if s := u.takeSpare(); s != nil {
			t.Errorf("a spare is to be had after %s", after)
		}
	}

	prepared().timer.Reset(0)
	nothing("a minute")

	_ = prepared().channel.Close() // the sandbox answers, which looks as if it had closed it by itself
	nothing("the sandbox closed it")

	s := prepared()
	if got := u.takeSpare(); got != s {
		t.Errorf("took %v, want the one there is", got)
	}
	u.lose(s) // a timer or the sandbox, just then
	if ok, err := s.program.SendRequest(wire.RequestExec, true, wire.Marshal(wire.Exec{Command: "true"})); err != nil || !ok {
		t.Errorf("what was taken cannot be used: %v, %v", ok, err)
	}
	u.drop(s)
	nothing("it was used")

	prepared()
	close(u.ended)
	if s := u.takeSpare(); s != nil { // as serve does
		t.Error("a spare of a connection that has ended is to be had")
	}
	nothing("the end of the connection")
	u.prepare()
	eventually(t, "that none is made any more", settled)
	nothing("another was wanted")
}

// A sandbox that asks for things on a spare, fills it or closes it does not hold up the connection: commands are served.
func TestHostileSpare(t *testing.T) {
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
			spoiled := make(chan struct{}, 3)
			w.playPassing(func(ch ssh.Channel, reqs <-chan *ssh.Request) {
				select {
				case q, ok := <-reqs:
					if ok {
						_ = q.Reply(true, nil)
						_, _ = ch.SendRequest("exit-status", false, exitStatus(0))
						ssh.DiscardRequests(reqs)
					}
					_ = ch.Close()
				case <-time.After(20 * time.Millisecond): // nobody starts anything: it is a spare
					spoil(ch)
					select {
					case spoiled <- struct{}{}:
					default:
					}
					ssh.DiscardRequests(reqs)
					_ = ch.Close()
				}
			})
			c := w.dial("alice", "demo")
			for range 3 {
				eventually(t, "a spare that the sandbox has spoiled", func() bool {
					for range 2 { // the second has one made, unless one before is still being closed
						eventually(t, "a command that is served", func() bool { // it may have taken what is being spoiled
							s, err := c.NewSession()
							if err != nil {
								t.Fatal(err)
							}
							defer s.Close()
							return s.Run("x") == nil
						})
					}
					select {
					case <-spoiled:
						return true
					case <-time.After(time.Second):
						return false
					}
				})
			}
			c.Close()
		})
	}
}
