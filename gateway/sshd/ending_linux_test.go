package sshd

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// heard is the client's side of a channel, and what it received.
type heard struct {
	input    *io.PipeReader
	requests chan *ssh.Request

	mu   sync.Mutex
	said []string // guarded by mu
}

func (h *heard) say(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.said = append(h.said, s)
}

func (h *heard) Read(p []byte) (int, error) { return h.input.Read(p) }
func (h *heard) Write(p []byte) (int, error) {
	h.say("out " + string(p))
	return len(p), nil
}
func (h *heard) Stderr() io.ReadWriter { return heardErrors{h} }
func (h *heard) CloseWrite() error {
	h.say("EOF")
	return nil
}

func (h *heard) Close() error {
	h.say("CLOSE")
	return nil
}

func (h *heard) SendRequest(name string, _ bool, _ []byte) (bool, error) {
	h.say(name)
	if name == "slow" {
		<-time.After(beforeExit) // of a synctest
	}
	return false, nil
}

type heardErrors struct{ h *heard }

func (e heardErrors) Read([]byte) (int, error) { return 0, io.EOF }
func (e heardErrors) Write(p []byte) (int, error) {
	e.h.say("err " + string(p))
	return len(p), nil
}

// program is the sandbox's side of a channel whose program leaves unread output when it ends.
type program struct {
	out, errs *io.PipeReader
	ends      [2]*io.PipeWriter
	rest      string // unread output at the end of the program
	closed    chan struct{}
	close     sync.Once
	ended     sync.Once
	input     bytes.Buffer
}

func newProgram(rest string) *program {
	p := &program{closed: make(chan struct{}), rest: rest}
	p.out, p.ends[0] = io.Pipe()
	p.errs, p.ends[1] = io.Pipe()
	return p
}

func (p *program) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *program) Write(b []byte) (int, error) { return p.input.Write(b) }
func (p *program) CloseWrite() error           { return nil }
func (p *program) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}
func (p *program) SendRequest(string, bool, []byte) (bool, error) { return true, nil }

type programErrors struct{ *program }

func (e programErrors) Read(b []byte) (int, error) { return e.errs.Read(b) }
func (p *program) Stderr() io.ReadWriter           { return programErrors{p} }

// end reads the rest of the output, and returns at its end: the exit status follows.
func (p *program) end() {
	p.ended.Do(func() {
		if p.rest != "" {
			_, _ = io.WriteString(p.ends[0], p.rest)
		}
		p.ends[0].Close()
		p.ends[1].Close()
	})
}

// Whatever the order in which a program's streams end, its status comes and the sandbox closes the
// channel: the client receives all output, the status once, EOF once, then CLOSE.
func TestEndOfProgram(t *testing.T) {
	const out, errs, exit, closed, wait = "out", "errs", "exit", "close", "wait"
	tests := map[string][]string{
		"streams first":                   {out, errs, exit, closed},
		"status first":                    {exit, closed},
		"one stream, status, the other":   {out, exit, closed},
		"it works on without its output":  {out, errs, wait, exit, closed},
		"and its channel is never closed": {out, errs, wait, exit, wait},
		"never closed":                    {exit, wait},
		"killed with its sandbox":         {closed},
		"killed after its output":         {out, errs, closed},
	}
	for name, order := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newProgram("the rest")
				in, typing := io.Pipe()
				h := &heard{input: in, requests: make(chan *ssh.Request)}
				requests := make(chan *ssh.Request)
				r := relay{client: &sshconn.Channel{Channel: h, Requests: h.requests},
					sandbox: &sshconn.Channel{Channel: p, Requests: requests},
					meter:   sshconn.NewMeter(1 << 30), session: true,
					kill: func() { t.Error("the sandbox's connection was ended") }}
				done := make(chan struct{})
				go func() {
					defer close(done)
					r.run()
				}()
				_, _ = io.WriteString(p.ends[0], "hello")
				_, _ = io.WriteString(p.ends[1], "warning")
				for _, event := range order {
					synctest.Wait()
					switch event {
					case out:
						p.rest = ""
						p.ends[0].Close()
					case errs:
						p.ends[1].Close()
					case exit:
						p.end()
						requests <- &ssh.Request{Type: wire.RequestExitStatus,
							Payload: wire.Marshal(wire.ExitStatus{Status: 7})}
					case closed:
						p.end()
						close(requests)
						requests = nil
					case wait:
						<-time.After(2 * beforeExit)
					}
				}
				synctest.Wait()
				h.mu.Lock()
				said := slices.Clone(h.said)
				h.mu.Unlock()
				// The client closes, too, as it does on CLOSE.
				close(h.requests)
				typing.Close()
				if requests != nil {
					<-p.closed
					close(requests)
				}
				<-done

				rest := p.rest
				var want []string
				if slices.Contains(order, exit) {
					want = []string{"exit-status"}
				}
				if i := slices.Index(order, wait); i >= 0 && slices.Index(order, exit) > i {
					want = []string{"EOF", "exit-status"} // it was not available before
				} else {
					want = append(want, "EOF")
				}
				want = append(want, "CLOSE")
				var ending []string
				for _, s := range said {
					if !strings.HasPrefix(s, "out ") && s != "err warning" &&
						(s != "CLOSE" || !slices.Contains(ending, s)) {
						ending = append(ending, s)
					}
				}
				if !slices.Equal(ending, want) {
					t.Errorf("the client heard %q, want it to end in %q", said, want)
				}
				// Data has no order beside a status, but comes before EOF.
				data := strings.Join(said[:slices.Index(append(said, "EOF"), "EOF")], "|")
				if strings.Count(data, "out hello") != 1 ||
					strings.Count(data, "err warning") != 1 ||
					strings.Count(data, "out the rest") != len(rest)/len("the rest") {
					t.Errorf("the client heard %q", said)
				}
				if slices.Contains(order, exit) != (r.exit == 7) {
					t.Errorf("exit %d", r.exit)
				}
			})
		})
	}
}

// A status that arrives when the wait for it ends is still passed on, and the channel closed.
func TestEndOfProgramJustThen(t *testing.T) {
	for range 40 { // the select picks one of two at random
		synctest.Test(t, func(t *testing.T) {
			p := newProgram("")
			in, typing := io.Pipe()
			h := &heard{input: in, requests: make(chan *ssh.Request)}
			requests := make(chan *ssh.Request, 2)
			r := relay{client: &sshconn.Channel{Channel: h, Requests: h.requests},
				sandbox: &sshconn.Channel{Channel: p, Requests: requests},
				meter:   sshconn.NewMeter(1 << 30), session: true,
				kill: func() { t.Error("the sandbox's connection was ended") }}
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.run()
			}()
			p.ends[0].Close()
			p.ends[1].Close()
			synctest.Wait()
			requests <- &ssh.Request{Type: "slow"} // keeps the relay busy for as long
			requests <- &ssh.Request{Type: wire.RequestExitStatus,
				Payload: wire.Marshal(wire.ExitStatus{Status: 7})}
			<-time.After(2 * beforeExit)
			synctest.Wait()
			h.mu.Lock()
			said := strings.Join(slices.Compact(slices.Clone(h.said)), " ") // it may close twice
			h.mu.Unlock()
			if said != "slow EOF exit-status CLOSE" && said != "slow exit-status EOF CLOSE" {
				t.Errorf("the client heard %s", said)
			}
			close(h.requests)
			typing.Close()
			<-p.closed
			close(requests)
			<-done
			if r.exit != 7 {
				t.Errorf("exit %d", r.exit)
			}
		})
	}
}

// A client that reads late gets all output, also if a background process holds it open: until then
// the sandbox cannot read it.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	c := w.dial("alice", "demo")
	// More than the window: the rest is in the pipe when the command ends.
	for i, more := range []int{15_000, 35_000, 55_000} {
		ch, reqs := openSession(t, c)
		exited := make(chan struct{}, 1)
		go func() { // ends with the channel
			for q := range reqs {
				if q.Type == wire.RequestExitStatus {
					exited <- struct{}{}
				}
			}
		}()
		n := 2<<20 + more
		execute(
			t, ch,
			fmt.Sprintf(
				"sleep 600 & echo $! >pid; head -c %d /dev/zero; echo >ending; mv ending ended%d",
				n, i))
		eventually(t, "the end of the command", func() bool {
			return output(t, c, fmt.Sprintf("[ -e ended%d ] && echo yes || true", i)) == "yes\n"
		})
		patience := 300 * time.Millisecond
		if i == 0 {
			patience = 3 * (afterExit + beforeExit) / 2 // and the total is bounded
		}
		select { // while the sandbox could take it
		case <-exited:
			t.Error("the exit status came before the output")
		case <-time.After(patience):
		}
		if b, err := io.ReadAll(ch); len(b) != n || err != nil {
			t.Errorf("got %d of %d bytes, %v", len(b), n, err)
		}
		_ = ch.Close()
		output(t, c, "kill $(cat pid)")
	}
}

// A client that may acknowledge data after its close learns of the end of much output some time
// before the close.
func TestEndForCareless(t *testing.T) {
	for _, c := range []struct {
		version string
		bytes   int
		want    time.Duration
	}{
		{"SSH-2.0-paramiko_2.12.0", carelessFrom + 1, beforeClose},
		{"SSH-2.0-paramiko_2.12.0", 5, 0},
		{"SSH-2.0-OpenSSH_9.2p1", carelessFrom + 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newProgram("")
			in, typing := io.Pipe()
			h := &heard{input: in, requests: make(chan *ssh.Request)}
			requests := make(chan *ssh.Request)
			r := relay{client: &sshconn.Channel{Channel: h, Requests: h.requests},
				sandbox: &sshconn.Channel{Channel: p, Requests: requests}, meter: sshconn.NewMeter(
					1 << 30), kill: func() {}, careless: isCareless([]byte(c.version))}
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.run()
			}()
			_, _ = p.ends[0].Write(make([]byte, c.bytes))
			p.ends[0].Close()
			p.ends[1].Close()
			last := func() string {
				synctest.Wait()
				h.mu.Lock()
				defer h.mu.Unlock()
				return h.said[len(h.said)-1]
			}
			start := time.Now()
			close(requests) // the sandbox has closed
			for last() != "CLOSE" {
				if last() != "EOF" || time.Since(start) > time.Second {
					t.Fatalf("%s: heard %q", c.version, last())
				}
				<-time.After(time.Millisecond)
			}
			if got := time.Since(start); got != c.want {
				t.Errorf("%s, %d bytes: CLOSE %v after the end of output, want %v", c.version,
					c.bytes, got, c.want)
			}
			close(h.requests)
			typing.Close()
			<-done
		})
	}
}
