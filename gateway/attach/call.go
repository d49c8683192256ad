package attach

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/session/syntax"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// call is one request of a party on a session, from when it is made until it is answered.
// Attachments and streams make all of theirs by beginCall, complete and lose. They differ in how
// the request reaches the guest, and when the answer goes out.
//
// A call that was sent to a guest is carried out by that guest or by none: it is repeated only to
// the party that it was sent for, which no other guest knows. When that cannot be reached any more
// the call is lost, and its caller decides what to do.
type call struct {
	*live.Call
	sandbox Sandbox
	live    *live.Session
	target  wire.Target
}

// beginCall begins a call of r. The caller ends it.
func beginCall(sb Sandbox, l *live.Session, t wire.Target, r wire.Request) *call {
	return &call{Call: l.Begin(r), sandbox: sb, live: l, target: t}
}

// incomplete rejects a run of a command that its shell would find unfinished.
func incomplete(shell string, r wire.Request) *wire.Error {
	if r.Verb != wire.VerbRun {
		return nil
	}
	var refused *wire.Error
	errors.As(syntax.Check(shell, r.Text), &refused)
	return refused
}

// complete makes reply, the guest's answer, what the caller gets: with what the guest does not
// know, and lost if the call is; nil if it is not.
func (c *call) complete(ctx context.Context, reply *wire.Reply, lost *wire.Error) {
	r := reply.Result
	if r == nil {
		return
	}
	if lost != nil {
		asLost(r, lost)
		reply.Error = lost
	}
	r.Sandbox, r.Session = c.target.Sandbox, c.target.Session // whatever the guest says
	c.Call.Complete(ctx, r)
	if c.Request.Op != "" {
		c.NoteRestart(r)
	}
}

// lossOf is the loss of a call that a guest answers with reply, if it is lost all the same: its
// sandbox ended, and the guest ends its sessions before it ends itself; or there is no result.
func (c *call) lossOf(reply wire.Reply) *wire.Error {
	empty := reply.Result == nil && reply.Error == nil && hasResult(c.Request.Verb)
	if !empty && !diedWith(reply.Result) {
		return nil
	}
	if over := c.sandbox.Over(); over != nil || !empty {
		return over
	}
	return wire.LostError(wire.LostGuest, "the guest answered without a result")
}

// lose answers a call that was sent and whose end is not known: what it is known to have printed,
// and why. It reads at most most bytes of the log and returns how many it read.
func (c *call) lose(ctx context.Context, why *wire.Error, most uint64) (reply wire.Reply,
	read uint64) {
	reply.Error = why
	if !hasResult(c.Request.Verb) {
		return reply, 0
	}
	reply.Result = wire.LostResult(c.target, why)
	if out := &c.Request.MaxOutput; *out < 0 || *out > maxReply/2 {
		*out = maxReply / 2
	}
	reply.Result.Keyboard = c.live.Keyboard()
	read = c.Lost(reply.Result, most)
	c.Call.Complete(ctx, reply.Result)
	if c.Request.Op != "" {
		c.NoteRestart(reply.Result)
	}
	return reply, read
}

// hasResult reports whether the answer to a request is a Result.
func hasResult(v wire.Verb) bool {
	return slices.Contains([]wire.Verb{wire.VerbRun, wire.VerbType, wire.VerbKeys, wire.VerbWait,
		wire.VerbInterrupt}, v)
}

// diedWith reports whether a guest answers that the session has ended, for which the end of its
// sandbox may be the reason. Before a sandbox is stopped for its full disk, the daemon has its
// processes killed: that is how the command ended.
func diedWith(r *wire.Result) bool {
	return r != nil && r.Ended == wire.Dead && !slices.Contains(r.Notes, diskFull)
}

// diskFull is the note of a result that the limit of disk ended.
const diskFull = "disk_full"

// asLost makes the Result with which a guest that was about to end answered that of a lost call.
func asLost(r *wire.Result, why *wire.Error) {
	r.Ended, r.ExitCode, r.Signal, r.Error = wire.Lost, nil, nil, why
	r.Notes = append(r.Notes, why.Reason)
}

// maxReply is the size in bytes that fits a frame.
const maxReply = wire.MaxFrame - 64

// fitting is a reply as a frame has it, without what does not fit into one.
func fitting(reply wire.Reply) ([]byte, error) {
	data, err := plainJSON(reply)
	if err == nil && len(data) > maxReply && reply.Result != nil {
		reply.Result.Denied = []wire.Denial{}
		data, err = plainJSON(reply)
	}
	// Of characters that JSON writes longer than the guest did.
	if err == nil && len(data) > maxReply {
		data, err = plainJSON(wire.Reply{Error: wire.Errorf(wire.CodeInternal,
			"the sandbox's answer is too long")})
	}
	return data, err
}

// plainJSON is v without escapes for HTML, which could make it longer than it came.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// whyLost is the loss of a call to which reply and err are the answer; nil if that is how it ended,
// or the caller has left one that nothing can come of.
func (a exchange) whyLost(ctx, caller context.Context, reply wire.Reply, err error) *wire.Error {
	answered := reply.Result != nil || reply.Error != nil
	lost, _ := errors.AsType[*wire.Error](err)
	var frozen *interrupt.FrozenError
	switch {
	case diedWith(reply.Result), err == nil:
		return a.call.lossOf(reply)
	case lost != nil && lost.Code == wire.CodeLost && lost.Reason == "":
		// the session ended, for which its sandbox may be the reason
		if over := a.sandbox.Over(); over != nil {
			return over
		}
		if reply.Result != nil {
			return nil
		}
		return wire.LostError(wire.LostGuest, lost.Message)
	case answered && (lost == nil || lost.Code != wire.CodeLost):
		return nil // it is the guest's answer
	case caller.Err() != nil:
		if a.call.Request.Op != "" && !answered {
			return a.given(caller)
		}
		return nil
	case lost != nil && lost.Code == wire.CodeLost:
		return lost
	case errors.As(context.Cause(ctx), &frozen):
		return frozen.Lost
	case a.Err() != nil:
		return wire.LostError(wire.LostDetached, a.all.options.Public(a.Err()).Message)
	}
	return a.sandbox.Unreachable(err)
}

// given is the loss of a request that was sent and whose caller has been cut off: by the end of the
// daemon, or of its access.
func (a exchange) given(caller context.Context) *wire.Error {
	cause := context.Cause(caller)
	return CutOff(cause, a.all.options.Public(cause))
}

// CutOff returns the loss of a call that was sent and whose caller was cut off. public is what the
// caller may see of cause.
func CutOff(cause error, public *wire.Error) *wire.Error {
	if errors.Is(cause, interrupt.ErrClosed) {
		return wire.LostError(wire.LostGateway, public.Message)
	}
	return wire.LostError(wire.LostDetached, public.Message)
}

// lostUnrecorded answers a request in place of the guest, whose answer may tell of output that
// nobody may see; nil while the session is recorded.
func lostUnrecorded(l *live.Session) *wire.Error {
	why := l.Unrecorded()
	if why == "" {
		return nil
	}
	return wire.LostError(wire.LostRecord, fmt.Sprintf("session %s was ended: %s", l.Name(), why))
}

// admits reports whether a request of a party resumes sb, if it is paused, because it does
// something in it. It refuses the others while sb is paused, and all while its guest is silent: a
// frozen guest does not answer. What is for a program that runs it refuses when sb has ended, which
// its connection may not show yet.
func admits(sb Sandbox, rights wire.Rights, verb wire.Verb, session string) (resumes bool,
	err error) {
	if verb == wire.VerbCancel { // which has no answer
		return false, nil
	}
	if err := sb.Silence(); err != nil {
		return false, err
	}
	if over := sb.Over(); over != nil && (types(verb) || verb == wire.VerbInterrupt) &&
		!sb.IsPaused() {
		return false, notTyped(over)
	}
	if wakes(verb) && rights != wire.RightWatch {
		return true, nil
	}
	if sb.IsPaused() {
		return false, sb.NotRunning(session)
	}
	return false, nil
}

// wakes reports whether a request resumes a sandbox that is paused. Looking and leaving do not.
func wakes(v wire.Verb) bool {
	switch v {
	case wire.VerbGive, wire.VerbResize, wire.VerbScreen:
		return false
	}
	return true
}

// lastWords waits briefly for the last output of a session whose sandbox has ended.
func lastWords(ctx context.Context, sb Sandbox, l *live.Session) {
	if sb.Over() == nil || sb.IsPaused() || sb.Silence() != nil { // it goes on
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lastOutput)
	defer cancel()
	for !l.Final() {
		if _, err := l.Wait(ctx, l.Generation()); err != nil {
			return
		}
	}
}

// lastOutput is how long the copy of a session may take to end once its sandbox has.
const lastOutput = time.Second
