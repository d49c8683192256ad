package sshd

import (
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// afterExit is how long output may pause after the command has ended, before the channel is
	// ended. A background process may hold the pipe indefinitely.
	afterExit = time.Second
	// beforeExit is how long the end of output is held back for the exit status while the client
	// might wait for it. OpenSSH's server sends EOF first, and a client without input may then
	// close the channel. It would miss the exit status, and treat the command as killed or, like
	// dbclient, as successful. For a client that sends, or has sent EOF, the end is held back until
	// the command has ended: such a client does not wait for EOF.
	beforeExit = 2 * time.Second
	// afterClose is the time for input that a client sent before it closed to arrive.
	afterClose = 2 * time.Second
	// beforeClose is the pause between EOF and CLOSE for a careless client that received more than
	// carelessFrom. Such a client reads in one thread and answers CLOSE in another, so it may
	// acknowledge data after its own CLOSE. The library then ends the connection, as RFC 4254,
	// section 5.3 forbids messages for a closed channel. After EOF the client acknowledges nothing.
	beforeClose  = 100 * time.Millisecond
	carelessFrom = 16 << 10
)

// isCareless reports whether a client of that version (RFC 4253, section 4.2) is careless, such as
// paramiko.
func isCareless(version []byte) bool {
	return strings.HasPrefix(string(version), "SSH-2.0-paramiko_")
}

// ending relays a sandbox's requests and orders the end of a relayed channel.
//
// The library delivers data and requests separately, so ending restores this order: a stream's data
// before its EOF; requests among themselves; exit-status or exit-signal before EOF if the sandbox
// sent it first; EOF of both streams before CLOSE (RFC 4254, sections 5.3 and 6.10). It belongs to
// one goroutine.
type ending struct {
	*relay
	in, out, errs *sshconn.Flow

	inDone, outDone, errDone <-chan struct{} // closed when a pump has ended; nil after that
	// Closed when the client has closed; nil after that.
	clientGone <-chan struct{}
	requests   <-chan *ssh.Request // of the sandbox; nil after its CLOSE

	timer  <-chan time.Time // of a channel that will be closed
	status <-chan time.Time // of a held EOF, while the client may send

	exited bool // the sandbox reported how the command ended
	gone   bool // the client has closed
	asked  bool // CLOSE was sent to the sandbox to end the channel in order
	held   bool // EOF is held back

	last, lastInput int64 // output and input at the last check
}

// input returns the number of bytes passed to the sandbox.
func (e *ending) input() int64 {
	n, _ := e.in.Passed()
	return n
}

// output returns the number of bytes passed to the client, and whether a write is under way.
func (e *ending) output() (n int64, busy bool) {
	out, writing := e.out.Passed()
	errs, writingErrs := e.errs.Passed()
	return out + errs, writing || writingErrs
}

// run returns when both sides have closed the channel.
func (e *ending) run() {
	for e.outDone != nil || e.errDone != nil || e.inDone != nil || e.clientGone != nil ||
		e.requests != nil {
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

// request handles a request of the sandbox.
func (e *ending) request(q *ssh.Request) {
	if e.pass(q); e.exited && e.outDone == nil && e.errDone == nil && e.held {
		e.held, e.status = false, nil
		e.outputEnded()
	}
}

// pass passes a request of the sandbox to the client.
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

// statusIsLate passes the end of output on without an exit status, unless the client still sends.
func (e *ending) statusIsLate() {
	if now := e.input(); now != e.lastInput {
		e.status, e.lastInput = time.After(beforeExit), now
		return
	}
	e.held, e.status = false, nil
	e.eof()
}

// eof sends EOF to the client, after the requests that preceded it.
func (e *ending) eof() {
	for {
		select {
		case q, ok := <-e.requests:
			if ok {
				e.pass(q)
				continue
			}
			// run handles the closed channel.
		default:
		}
		_ = e.client.CloseWrite()
		return
	}
}

// sandboxClosed passes the sandbox's CLOSE on, after its data. The pumps end by themselves.
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

// clientClosed passes the client's CLOSE on, when its data has arrived or after afterClose.
func (e *ending) clientClosed() {
	e.clientGone, e.gone = nil, true
	if e.timer = nil; e.inDone == nil {
		_ = e.sandbox.Close()
	} else {
		e.timer = time.After(afterClose)
	}
}

// timeIsUp ends the channel of a command that has ended, once its output pauses, or of a client
// that has closed. A server like sshd would wait for all processes that hold the command's pipe.
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

// noteExit records how the command ended, and reports whether the request is well-formed.
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
