package sshd

import (
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
	"golang.org/x/crypto/ssh"
)

// relay is one channel between a client and its sandbox. Data and requests pass untouched; what they mean is for the two
// ends. It knows no session and no policy but what its fields say.
//
// The library hands data and requests apart, so what has to be in order is put in order here: a stream's data before
// its EOF, requests among themselves, exit-status or exit-signal before EOF where the sandbox sent it before, EOF of both
// streams before CLOSE (RFC 4254, sections 5.3 and 6.10).
type relay struct {
	client, sandbox *sshconn.Channel
	meter           *sshconn.Meter
	session         bool                    // a session channel: it has an exit status
	careless        bool                    // the client may say how much it has read after it has closed: see beforeClose
	allow           func(*ssh.Request) bool // requests of the client; nil allows all. May change the payload
	tap             io.Writer               // sees the output of a terminal before the client does; nil if nobody
	kill            func()                  // ends the connection to the sandbox

	done chan struct{} // closed when run returns

	exit  int   // valid after run: exit status, 128+n for a signal, −1 when the connection ended first
	bytes int64 // valid after run: of standard output and error
}

const (
	// afterExit is how long output may pause, once the command has ended, until the channel is ended: a process that it
	// left behind may hold the pipe for ever.
	afterExit = time.Second
	// beforeExit is how long the end of a command's output is held back for its exit status while the client might wait for it. OpenSSH's
	// server says first that the output has ended, and a client that has nothing to send either may close the channel on that: of
	// what comes then it sees nothing, and takes the command for killed or, as dbclient does, for successful. From one that sends,
	// or has said that it sends no more, the end is held back until the command has ended: it does not wait for that to go on.
	beforeExit = 2 * time.Second
	// afterClose is how long input that a client sent before it closed may take to arrive.
	afterClose = 2 * time.Second
	// beforeClose is the time between the end of output and CLOSE for a careless client that was sent more than carelessFrom. It reads in
	// one thread and answers CLOSE in another: how much it has read it may say after its own CLOSE, which ends its connection, for
	// the library takes no message for a channel that is no more (RFC 4254, section 5.3). Once it knows of the end it says no such thing.
	beforeClose  = 100 * time.Millisecond
	carelessFrom = 16 << 10
)

// isCareless reports whether clients of that version (RFC 4253, section 4.2) are: paramiko's.
func isCareless(version []byte) bool { return strings.HasPrefix(string(version), "SSH-2.0-paramiko_") }

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
	in, out, errs := r.meter.In(r.abort), r.meter.Out(r.abort), r.meter.Out(r.abort)
	inDone := start(in, r.sandbox, r.client)
	var stdout io.Writer = r.client
	if r.tap != nil {
		stdout = tapped{r.client, r.tap}
	}
	outDone := start(out, stdout, r.sandbox)
	// Always pumped: stderr that nobody reads stops a channel at 2 MiB.
	errDone := start(errs, r.client.Stderr(), r.sandbox.Stderr())

	requestsDone := make(chan struct{})
	pumps.Go(func() {
		defer close(requestsDone)
		passRequests(r.sandbox, r.client.Requests, r.allow)
	})

	input := func() int64 {
		n, _ := in.Passed()
		return n
	}
	output := func() (int64, bool) {
		o, writing := out.Passed()
		e, writingErr := errs.Passed()
		return o + e, writing || writingErr
	}
	r.finish(inDone, outDone, errDone, requestsDone, input, output)
	pumps.Wait()
	r.bytes, _ = output()
}

// finish passes the sandbox's requests and puts the end in order. input and output are how much was passed on, and of
// output whether some is on its way.
func (r *relay) finish(inDone, outDone, errDone, clientGone <-chan struct{}, input func() int64, output func() (int64, bool)) {
	var timer <-chan time.Time  // of a channel that is to be closed
	var status <-chan time.Time // of an EOF that is held back, while the client may send
	var last, lastInput int64
	exited, gone, asked, held := false, false, false, false
	pass := func(q *ssh.Request) {
		if ours(q.Type) {
			_ = q.Reply(false, nil)
			return
		}
		if r.session && (q.Type == wire.RequestExitStatus || q.Type == wire.RequestExitSignal) {
			if exited || !r.noteExit(q) {
				_ = q.Reply(false, nil) // malformed, or said twice
				return
			}
			exited = true
			last, _ = output()
			timer = time.After(afterExit)
		}
		passRequest(r.client, q)
	}
	requests := r.sandbox.Requests // nil after CLOSE
	closeClient := func() {
		if passed, _ := output(); r.careless && !gone && passed > carelessFrom {
			<-time.After(beforeClose)
		}
		_ = r.client.Close()
	}
	over := func() {
		if held = r.session && !exited && requests != nil; !held {
			r.eof(pass)
		} else if inDone != nil {
			status, lastInput = time.After(beforeExit), input()
		}
	}
	for outDone != nil || errDone != nil || inDone != nil || clientGone != nil || requests != nil {
		select {
		case q, ok := <-requests:
			if ok {
				if pass(q); exited && outDone == nil && errDone == nil && held {
					held, status = false, nil
					over()
				}
				continue
			}
			// CLOSE. What it sent before is still to be passed on; the pumps end by themselves.
			requests = nil
			waitFor(outDone)
			waitFor(errDone)
			if outDone != nil || errDone != nil || held {
				_ = r.client.CloseWrite()
			}
			outDone, errDone, timer, status, held = nil, nil, nil, nil, false
			closeClient()
			_ = r.sandbox.Close()
		case <-outDone:
			if outDone = nil; errDone == nil {
				over()
			}
		case <-errDone:
			if errDone = nil; outDone == nil {
				over()
			}
		case <-status:
			if now := input(); now != lastInput {
				status, lastInput = time.After(beforeExit), now
				continue
			}
			held, status = false, nil
			r.eof(pass)
		case <-inDone:
			status = nil
			if inDone = nil; gone {
				_ = r.sandbox.Close()
			} else {
				_ = r.sandbox.CloseWrite()
			}
		case <-clientGone:
			clientGone, gone = nil, true
			if timer = nil; inDone == nil {
				_ = r.sandbox.Close()
			} else {
				timer = time.After(afterClose)
			}
		case <-timer:
			if gone {
				timer = nil
				_ = r.sandbox.Close()
				continue
			}
			// The command has ended. sshd would wait for everybody who holds its pipe.
			now, busy := output()
			switch {
			case busy || now != last:
				last, timer = now, time.After(afterExit)
			case !asked:
				// Its answer ends the channel in order.
				asked, timer = true, time.After(afterExit)
				_ = r.sandbox.Close()
			default:
				timer = nil
				_ = r.client.Close()
			}
		}
	}
}

// eof passes on the end of both streams, after the requests that came before it.
func (r *relay) eof(pass func(*ssh.Request)) {
	for {
		select {
		case q, ok := <-r.sandbox.Requests:
			if ok {
				pass(q)
				continue
			}
			// finish receives the same again.
		default:
		}
		_ = r.client.CloseWrite()
		return
	}
}

func waitFor(done <-chan struct{}) {
	if done != nil {
		<-done
	}
}

// noteExit notes how the command ended and reports whether the request says so in due form.
func (r *relay) noteExit(q *ssh.Request) bool {
	if q.Type == wire.RequestExitStatus {
		var s wire.ExitStatus
		if err := wire.Unmarshal(q.Payload, &s); err != nil {
			return false
		}
		r.exit = int(s.Status)
		return true
	}
	var s wire.ExitSignal
	if err := wire.Unmarshal(q.Payload, &s); err != nil {
		return false
	}
	r.exit = 128 + wire.SignalNumber(s.Signal)
	return true
}

// abort ends the channel both ways. A sandbox that does not answer CLOSE loses its connection: until then the library keeps
// what the client sent.
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

// passRequest passes one request on and its answer back. What cannot be sent is refused: a request without an answer
// would hang its sender.
func passRequest(to ssh.Channel, q *ssh.Request) {
	ok, err := to.SendRequest(q.Type, q.WantReply, q.Payload)
	_ = q.Reply(err == nil && ok, nil)
}

// Sizes of a pump's buffer: most channels are idle terminals, and bulk is fastest with as much as a pipe holds. A program whose pipe is full
// runs when some of it has been read, often at once and on the reader's processor: for half as much at a time they change places twice as often.
const (
	smallBuffer = 512
	largeBuffer = 64 << 10
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// pump copies until src ends. When dst takes no more the rest is read and dropped: unread, it would stay in memory.
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

// tapped writes to the tap first: what a client has seen is in the record.
type tapped struct{ to, tap io.Writer }

func (t tapped) Write(p []byte) (int, error) {
	if _, err := t.tap.Write(p); err != nil {
		return 0, err // records are strict
	}
	return t.to.Write(p)
}

// ours reports whether a name belongs to this project: what carries it is between daemon and guest, never from a client.
func ours(name string) bool { return strings.HasSuffix(name, "@sandboxd") }
