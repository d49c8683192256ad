package sshd

import (
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"golang.org/x/crypto/ssh"
)

// relay is one channel between a client and its sandbox. Data and requests pass unchanged. It
// applies only the policy in its fields, and does not know how the sandbox's data arrives.
type relay struct {
	client, sandbox *sshconn.Channel
	meter           *sshconn.Meter
	session         bool // a session channel, which has an exit status
	careless        bool // the client may acknowledge data after it has closed; see beforeClose
	// allow decides on requests of the client, and may change the payload. nil allows all.
	allow func(*ssh.Request) bool
	tap   io.Writer // receives the output before the client does; nil: none
	kill  func()    // ends the connection to the sandbox
	// lost, if not nil, is called before a session without an exit status is reported as ended.
	lost func()

	done chan struct{} // closed when run returns

	exit  int   // after run: exit status, 128+n for a signal, −1 if the connection ended first
	bytes int64 // after run: size of standard output and error
}

// run relays until both sides have closed the channel.
func (r *relay) run() {
	r.exit, r.done = -1, make(chan struct{})
	defer close(r.done)
	var pumps sync.WaitGroup
	start := func(f *sshconn.Flow, dst io.Writer, src io.Reader) <-chan struct{} {
		done := make(chan struct{})
		pumps.Go(func() {
			defer close(done)
			pump(f, dst, src)
		})
		return done
	}
	e := &ending{relay: r, in: r.meter.In(r.abort), out: r.meter.Out(r.abort),
		errs:     r.meter.Out(r.abort),
		requests: r.sandbox.Requests}
	e.inDone = start(e.in, r.sandbox, r.client)
	var stdout io.Writer = r.client
	if r.tap != nil {
		stdout = tapped{r.client, r.tap}
	}
	e.outDone = start(e.out, stdout, r.sandbox)
	// Always pumped: unread stderr blocks a channel at 2 MiB.
	e.errDone = start(e.errs, r.client.Stderr(), r.sandbox.Stderr())
	clientGone := make(chan struct{})
	pumps.Go(func() {
		defer close(clientGone)
		passRequests(r.sandbox, r.client.Requests, r.allow)
	})
	e.clientGone = clientGone
	e.run()
	pumps.Wait()
	r.bytes, _ = e.output()
}

// abort ends the channel in both directions. If the sandbox does not answer CLOSE, abort ends its
// connection, because the library keeps the client's data until then.
func (r *relay) abort() {
	_ = r.client.Close()
	_ = r.sandbox.Close()
	timer := time.NewTimer(afterClose)
	defer timer.Stop()
	select {
	case <-r.done:
	case <-timer.C:
		r.kill()
	}
}

// passRequests passes a client's requests on, in order, until it closes the channel.
func passRequests(to ssh.Channel, requests <-chan *ssh.Request, allow func(*ssh.Request) bool) {
	for q := range requests {
		if ours(q.Type) || allow != nil && !allow(q) {
			_ = q.Reply(false, nil)
			continue
		}
		passRequest(to, q)
	}
}

// passRequest passes a request on and returns its answer. A request that cannot be sent is refused,
// because a missing answer would hang its sender.
func passRequest(to ssh.Channel, q *ssh.Request) {
	ok, err := to.SendRequest(q.Type, q.WantReply, q.Payload)
	_ = q.Reply(err == nil && ok, nil)
}

// Sizes of a pump's buffer. Most channels are idle terminals; bulk output is fastest with the size
// of a pipe. A program with a full pipe continues when part of it is read, often on the reader's
// processor: half the size means twice as many switches.
const (
	smallBuffer = 512
	largeBuffer = 64 << 10
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// pump copies until src ends. If dst fails, it reads and drops the rest, which would otherwise stay
// in memory.
func pump(f *sshconn.Flow, dst io.Writer, src io.Reader) {
	small := make([]byte, smallBuffer)
	var large *[largeBuffer]byte
	defer func() {
		if large != nil {
			largeBuffers.Put(large)
		}
	}()
	for {
		buf := small
		if large != nil {
			buf = large[:]
		}
		n, err := src.Read(buf)
		f.Read(n)
		if n > 0 {
			if _, err := f.Write(dst, buf[:n]); err != nil {
				_, _ = io.CopyBuffer(io.Discard, onlyReader{src}, buf)
				return
			}
		}
		if err != nil {
			return
		}
		switch {
		case large == nil && n == len(small):
			large = largeBuffers.Get().(*[largeBuffer]byte)
		case large != nil && n < smallBuffer:
			largeBuffers.Put(large)
			large = nil
		}
	}
}

// onlyReader hides a channel's other methods from io.CopyBuffer.
type onlyReader struct{ io.Reader }

// tapped writes to the tap first, so that the record has everything that a client saw.
type tapped struct{ to, tap io.Writer }

func (t tapped) Write(p []byte) (int, error) {
	if _, err := t.tap.Write(p); err != nil {
		return 0, err // recording must not fail silently
	}
	return t.to.Write(p)
}

// ours reports whether a name belongs to this project. Such requests are between daemon and guest,
// never to or from a client.
func ours(name string) bool { return strings.HasSuffix(name, "@sandboxd") }
