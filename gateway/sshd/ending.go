package sshd

import (
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// afterExit is how long output may pause, once the command has ended, until the channel is
	// ended: a process that it left behind may hold the pipe indefinitely.
	afterExit = time.Second
	// beforeExit is how long the end of a command's output is held back for its exit status while
	// the client might wait for it. OpenSSH's server sends EOF first, and a client that has nothing
	// to send either may close the channel on that. It then misses what follows, and takes the
	// command for killed or, as dbclient does, for successful. From a client that sends, or has sent
	// EOF, the end is held back until the command has ended: it does not wait for that to go on.
	beforeExit = 2 * time.Second
	// afterClose is how long input that a client sent before it closed may take to arrive.
	afterClose = 2 * time.Second
	// beforeClose is the time between the end of output and CLOSE for a careless client that was
	// sent more than carelessFrom. It reads in one thread and answers CLOSE in another, so it may
	// acknowledge data after its own CLOSE. That ends its connection: the library takes no message
	// for a channel that is closed (RFC 4254, section 5.3). After EOF it acknowledges nothing.
	beforeClose  = 100 * time.Millisecond
	carelessFrom = 16 << 10
)

// isCareless reports whether clients of that version (RFC 4253, section 4.2) are careless: paramiko's.
func isCareless(version []byte) bool {
	return strings.HasPrefix(string(version), "SSH-2.0-paramiko_")
}

// ending passes a sandbox's requests on and puts the end of a relayed channel in order.
//
// The library hands over data and requests apart. So this is what has to be put in order: a
// stream's data before its EOF, requests among themselves, exit-status or exit-signal before EOF
// where the sandbox sent it before, EOF of both streams before CLOSE (RFC 4254, sections 5.3 and
// 6.10). It belongs to one goroutine.
type ending struct {
	*relay
	in, out, errs *sshconn.Flow

	inDone, outDone, errDone <-chan struct{}     // closed when a pump has ended; nil once that is known
	clientGone               <-chan struct{}     // closed when the client has closed; nil once that is known
	requests                 <-chan *ssh.Request // of the sandbox; nil after its CLOSE

	timer  <-chan time.Time // of a channel that is to be closed
	status <-chan time.Time // of an EOF that is held back, while the client may send

	exited bool // the sandbox reported how the command ended
	gone   bool // the client has closed
	asked  bool // the sandbox was sent CLOSE to end the channel in order
	held   bool // EOF is held back

	last, lastInput int64 // output and input at the last look
}

// input is how much was passed on to the sandbox.
func (e *ending) input() int64 {
	n, _ := e.in.Passed()
	return n
}

// output is how much was passed on to the client, and whether more is on its way.
func (e *ending) output() (n int64, busy bool) {
	out, writing := e.out.Passed()
	errs, writingErrs := e.errs.Passed()
	return out + errs, writing || writingErrs
}

// run returns when both sides have closed the channel.
func (e *ending) run() {
	for e.outDone != nil || e.errDone != nil || e.inDone != nil || e.clientGone != nil || e.requests != nil {
		select {
		case q, ok := <-e.requests:
			if ok {
				e.request(q)
			} else {
				e.sandboxClosed()
			}
		case <-e.outDone:
			if e.outDone = nil; e.errDone == nil {
				e.outputEnded()
			}
		case <-e.errDone:
			if e.errDone = nil; e.outDone == nil {
				e.outputEnded()
			}
		case <-e.status:
			e.statusIsLate()
		case <-e.inDone:
			e.inputEnded()
		case <-e.clientGone:
			e.clientClosed()
		case <-e.timer:
			e.timeIsUp()
		}
	}
}

// request takes a request of the sandbox.
func (e *ending) request(q *ssh.Request) {
	if e.pass(q); e.exited && e.outDone == nil && e.errDone == nil && e.held {
		e.held, e.status = false, nil
		e.outputEnded()
	}
}

// pass passes a request of the sandbox on to the client.
func (e *ending) pass(q *ssh.Request) {
	if ours(q.Type) {
		_ = q.Reply(false, nil)
		return
	}
	if e.session && (q.Type == wire.RequestExitStatus || q.Type == wire.RequestExitSignal) {
		if e.exited || !e.noteExit(q) {
			_ = q.Reply(false, nil) // malformed, or sent twice
			return
		}
		e.exited = true
		e.last, _ = e.output()
		e.timer = time.After(afterExit)
	}
	passRequest(e.client, q)
}

// outputEnded passes the end of both streams on, or holds it back for the exit status.
func (e *ending) outputEnded() {
	if e.held = e.session && !e.exited && e.requests != nil; !e.held {
		e.eof()
	} else if e.inDone != nil {
		e.status, e.lastInput = time.After(beforeExit), e.input()
	}
}

// statusIsLate passes the end of output on without exit status, unless the client still sends.
func (e *ending) statusIsLate() {
	if now := e.input(); now != e.lastInput {
		e.status, e.lastInput = time.After(beforeExit), now
		return
	}
	e.held, e.status = false, nil
	e.eof()
}

// eof sends EOF to the client, after the requests that came before it.
func (e *ending) eof() {
	for {
		select {
		case q, ok := <-e.requests:
			if ok {
				e.pass(q)
				continue
			}
			// run receives the same again.
		default:
		}
		_ = e.client.CloseWrite()
		return
	}
}

// sandboxClosed passes CLOSE of the sandbox on, after what it sent before. The pumps end by themselves.
func (e *ending) sandboxClosed() {
	e.requests = nil
	waitFor(e.outDone)
	waitFor(e.errDone)
	if e.lost != nil && !e.exited && !e.gone {
		e.lost()
	}
	if e.outDone != nil || e.errDone != nil || e.held {
		_ = e.client.CloseWrite()
	}
	e.outDone, e.errDone, e.timer, e.status, e.held = nil, nil, nil, nil, false
	if passed, _ := e.output(); e.careless && !e.gone && passed > carelessFrom {
		<-time.After(beforeClose)
	}
	_ = e.client.Close()
	_ = e.sandbox.Close()
}

// inputEnded passes the end of the client's data on.
func (e *ending) inputEnded() {
	e.status, e.inDone = nil, nil
	if e.gone {
		_ = e.sandbox.Close()
	} else {
		_ = e.sandbox.CloseWrite()
	}
}

// clientClosed passes CLOSE of the client on, when its data has arrived or that takes too long.
func (e *ending) clientClosed() {
	e.clientGone, e.gone = nil, true
	if e.timer = nil; e.inDone == nil {
		_ = e.sandbox.Close()
	} else {
		e.timer = time.After(afterClose)
	}
}

// timeIsUp ends the channel of a command that has ended, once its output pauses, or of a client
// that has closed. A server like sshd would wait for everybody who holds the command's pipe.
func (e *ending) timeIsUp() {
	if e.gone {
		e.timer = nil
		_ = e.sandbox.Close()
		return
	}
	switch now, busy := e.output(); {
	case busy || now != e.last:
		e.last, e.timer = now, time.After(afterExit)
	case !e.asked:
		// The sandbox's answer ends the channel in order.
		e.asked, e.timer = true, time.After(afterExit)
		_ = e.sandbox.Close()
	default:
		e.timer = nil
		_ = e.client.Close()
	}
}

func waitFor(done <-chan struct{}) {
	if done != nil {
		<-done
	}
}

// noteExit notes how the command ended and reports whether the request is well-formed.
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
