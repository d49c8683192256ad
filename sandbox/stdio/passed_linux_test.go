package stdio

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// channel is a session channel that only counts its closes.
type channel struct {
	ssh.Channel
	closed int
}

func (c *channel) Close() error {
	c.closed++
	return nil
}

// Output ends when the program has ended, even while a child has its pipes; then come the exit
// status and the end of the requests.
func TestEndOfPassed(t *testing.T) {
	exit := &ssh.Request{Type: wire.RequestExitStatus,
		Payload: wire.Marshal(wire.ExitStatus{Status: 7})}
	signal := &ssh.Request{Type: wire.RequestExitSignal,
		Payload: wire.Marshal(wire.ExitSignal{Signal: "KILL"})}
	for name, tt := range map[string]struct {
		sent []*ssh.Request
		want int // how many of sent arrive
		held int // how many of sent arrive before the output is read
	}{
		"exit status":                {[]*ssh.Request{exit}, 1, 0},
		"signal":                     {[]*ssh.Request{signal}, 1, 0},
		"another request before":     {[]*ssh.Request{{Type: "x"}, exit}, 2, 1},
		"another after":              {[]*ssh.Request{exit, {Type: "x"}}, 1, 0},
		"a second status":            {[]*ssh.Request{exit, exit}, 1, 0},
		"a malformed status":         {[]*ssh.Request{{Type: wire.RequestExitStatus}, exit}, 2, 1},
		"the channel without status": {nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, _ := pairWith(t, false)
				ch := new(channel)
				p, err := newPassed(&Programs{socket: near}, ch, Pipes)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := unix.Write(p.far[1], []byte("hello")); err != nil { // which stays open
					t.Fatal(err)
				}
				in, out := make(chan *ssh.Request), make(chan *ssh.Request)
				go p.follow(in, out)
				go func() {
					defer close(in)
					for _, q := range tt.sent {
						in <- q
					}
				}()
				for range tt.held {
					<-out
				}
				if tt.want > 0 {
					synctest.Wait()
					select {
					case q := <-out:
						t.Errorf("%s came before the end of the output", q.Type)
					default:
					}
				}
				for i, r := range []io.Reader{p, p.Stderr()} {
					if b, err := io.ReadAll(r); string(b) != []string{"hello", ""}[i] ||
						err != nil {
						t.Errorf("output %d: got %q, %v", i, b, err)
					}
				}
				n := tt.held
				for range out {
					n++
				}
				if n != tt.want {
					t.Errorf("got %d requests, want %d", n, tt.want)
				}
				_ = p.Close()
				p.release()
				if ch.closed != 1 || p.held != 0 {
					t.Errorf("closed %d times, %d descriptors are held", ch.closed, p.held)
				}
			})
		})
	}
}

// Release works for a program whose output was not read.
func TestReleaseUnread(t *testing.T) {
	near, _ := pairWith(t, false)
	p, err := newPassed(&Programs{socket: near}, new(channel), Pipes)
	if err != nil {
		t.Fatal(err)
	}
	in := make(chan *ssh.Request, 2)
	in <- &ssh.Request{Type: wire.RequestExitStatus, Payload: wire.Marshal(wire.ExitStatus{})}
	in <- &ssh.Request{Type: "x"}
	close(in)
	go p.follow(in, make(chan *ssh.Request))
	p.release()
	if _, err := p.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want io.EOF", err)
	}
}

// No descriptors are made beyond the share of programs.
func TestHeld(t *testing.T) {
	near, _ := pairWith(t, false)
	n := maxHeld()
	held.Add(n)
	defer held.Add(-n)
	if p, err := newPassed(&Programs{socket: near}, new(channel), Pipes); err == nil {
		p.closeAll()
		t.Error("got a program")
	}
	if got := held.Load(); got != n {
		t.Errorf("%d descriptors are counted, want %d", got, n)
	}
}
