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

// call is one request of a party on a session, until it is answered. Attachments and streams use
// beginCall, complete and lose for all their calls. They differ in how the request reaches the
// guest, and in when the answer goes out.
//
// Only the guest that a call was sent to may carry it out. So the call is repeated only as the
// party that it was sent for, which no other guest knows. If that guest cannot be reached any more,
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

// incomplete rejects a run whose text the shell would find incomplete. shell is the name of the
// session's own shell; another one may be at its prompt inside that.
func incomplete(l *live.Session, shell string, r wire.Request) *wire.Error {
	if r.Verb != wire.VerbRun {
		return nil
	}
	if inner := l.State().Shell; inner != nil {
		shell = inner.Name
	}
	var refused *wire.Error
	errors.As(syntax.Check(shell, r.Text), &refused)
	return refused
}

// complete turns reply, the guest's answer, into the caller's answer. It adds what the guest does
// not know. If lost is not nil, it also marks the call as lost.
func (c *call) complete(ctx context.Context, reply *wire.Reply, lost *wire.Error) {
	r := reply.Result
	if r == nil {
		return
	}
	if lost != nil {
		asLost(r, lost)
		reply.Error = lost
	}
	r.Sandbox, r.Session = c.target.Sandbox, c.target.Session // overrides what the guest says
	c.Call.Complete(ctx, r)
	if c.Request.Op != "" {
		c.NoteRestart(r)
	}
}

// lossOf returns the loss of a call that a guest answers with reply, or nil if the call is not
// lost. A call is lost if its sandbox ended, because the guest ends its sessions before itself. A
// call is also lost if there is no result.
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

// lose answers a call that was sent and whose end is not known. The answer contains the known
// output and why the call is lost. lose reads at most most bytes of the log and returns how many it
// read.
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

// diedWith reports whether a guest answers that the session has ended, which may be because its
// sandbox ended. It returns false if the daemon killed the processes of a full disk before it
// stopped the sandbox: that is how the command ended.
func diedWith(r *wire.Result) bool {
	return r != nil && r.Ended == wire.Dead && !slices.Contains(r.Notes, diskFull)
}

// diskFull is the note of a result that the disk limit ended.
const diskFull = "disk_full"

// asLost turns the Result of a guest that was about to end into that of a lost call.
func asLost(r *wire.Result, why *wire.Error) {
	r.Ended, r.ExitCode, r.Signal, r.Error = wire.Lost, nil, nil, why
	r.Notes = append(r.Notes, why.Reason)
}

// maxReply is the largest reply in bytes that fits a frame.
const maxReply = wire.MaxFrame - 64

// fitting encodes a reply for a frame, without the parts that do not fit.
func fitting(reply wire.Reply) ([]byte, error) {
	data, err := plainJSON(reply)
	if err == nil && len(data) > maxReply && reply.Result != nil {
		reply.Result.Denied = []wire.Denial{}
		data, err = plainJSON(reply)
	}
	// Even so, JSON may encode some characters longer than the guest did.
	if err == nil && len(data) > maxReply {
		data, err = plainJSON(wire.Reply{Error: wire.Errorf(wire.CodeInternal,
			"the sandbox's answer is too long")})
	}
	return data, err
}

// plainJSON encodes v without escapes for HTML, which could make it longer than the original.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// whyLost returns the loss of a call that was answered with reply and err. It returns nil if that
// is how the call ended, or if the caller has gone and the call has no lasting effect.
func (a exchange) whyLost(ctx, caller context.Context, reply wire.Reply, err error) *wire.Error {
	answered := reply.Result != nil || reply.Error != nil
	lost, _ := errors.AsType[*wire.Error](err)
	var frozen *interrupt.FrozenError
	switch {
	case diedWith(reply.Result), err == nil:
		return a.call.lossOf(reply)
	case lost != nil && lost.Code == wire.CodeLost && lost.Reason == "":
		// The session ended, perhaps because its sandbox did.
		if over := a.sandbox.Over(); over != nil {
			return over
		}
		if reply.Result != nil {
			return nil
		}
		return wire.LostError(wire.LostGuest, lost.Message)
	case answered && (lost == nil || lost.Code != wire.CodeLost):
		return nil // this is the guest's answer
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

// given returns the loss of a request that was sent and whose caller was disconnected, by the end
// of the daemon or of the caller's access.
func (a exchange) given(caller context.Context) *wire.Error {
	cause := context.Cause(caller)
	return CutOff(cause, a.all.options.Public(cause))
}

// CutOff returns the loss of a call that was sent and whose caller was disconnected. public is the
// part of cause that the caller may see.
func CutOff(cause error, public *wire.Error) *wire.Error {
	if errors.Is(cause, interrupt.ErrClosed) {
		return wire.LostError(wire.LostGateway, public.Message)
	}
	return wire.LostError(wire.LostDetached, public.Message)
}

// lostUnrecorded returns the loss of a request while the session cannot be recorded, else nil. The
// guest's answer may describe output that nobody may see.
func lostUnrecorded(l *live.Session) *wire.Error {
	why := l.Unrecorded()
	if why == "" {
		return nil
	}
	return wire.LostError(wire.LostRecord, fmt.Sprintf("session %s was ended: %s", l.Name(), why))
}

// admits reports whether a request of a party resumes sb if it is paused, because it acts in the
// sandbox. It rejects other requests while sb is paused, since a frozen guest does not answer. It
// rejects all requests while the guest does not answer. It rejects input for a program if sb has
// ended, which its connection may not show yet.
func admits(sb Sandbox, rights wire.Rights, verb wire.Verb, session string) (resumes bool,
	err error) {
	if verb == wire.VerbCancel { // it has no answer
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

// wakes reports whether a request resumes a paused sandbox. Reading the screen or the trace,
// resizing and giving the keyboard back do not.
func wakes(v wire.Verb) bool {
	switch v {
	case wire.VerbGive, wire.VerbResize, wire.VerbScreen, wire.VerbTrace:
		return false
	}
	return true
}

// lastWords waits briefly for the last output of a session whose sandbox has ended.
func lastWords(ctx context.Context, sb Sandbox, l *live.Session) {
	if sb.Over() == nil || sb.IsPaused() || sb.Silence() != nil { // the sandbox continues
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

// lastOutput is how long the copy of a session may take to end after its sandbox.
const lastOutput = time.Second
