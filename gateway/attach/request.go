package attach

import (
	"context"
	"errors"
	"io"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Request sends a request to the session, such as run, type, keys, wait or screen. It takes effect
// once, even if the connection to the sandbox breaks meanwhile. If the end of a call is not known,
// for example because its sandbox was stopped, Request returns an error and a Result with Ended
// lost.
func (a *Attachment) Request(ctx context.Context, r wire.Request) (wire.Reply, error) {
	if r.Party != nil {
		return wire.Reply{}, wire.Errorf(wire.CodeUsage, "party comes from the login")
	}
	if r.Drives() {
		if err := mayDrive(a.party); err != nil {
			return wire.Reply{}, err
		}
	}
	if r.Op == "" && (r.Verb == wire.VerbRun || types(r.Verb)) {
		r.Op = wire.NewOp()
	}
	defer a.calling()()
	caller := ctx
	ctx, done := a.within(ctx)
	defer done()
	ctx, over := a.sandbox.Within(ctx) // before the state is read, so that no pause is missed
	defer over()
	resumes, err := admits(a.sandbox, a.party.Rights, r.Verb, a.target.Session)
	if resumes {
		err = a.sandbox.Wake(ctx, a.party.Name)
	}
	if err != nil {
		return wire.Reply{}, err
	}
	if r.Verb == wire.VerbRun {
		a.live.Unseen.Store(false)
	}
	x := exchange{a, beginCall(a.sandbox, a.live, a.target, r)}
	defer x.call.End()
	client, err := x.clientFor(ctx, r)
	if err != nil {
		return wire.Reply{}, interrupt.FrozenOr(ctx, err)
	}
	if refused := incomplete(a.live, client.Attached().Shell, r); refused != nil {
		return wire.Reply{Error: refused}, refused
	}
	reply, err := x.send(ctx, client)
	return x.answer(ctx, caller, reply, err)
}

// exchange is one request of an attachment to the guest.
type exchange struct {
	*Attachment
	call *call
}

// types reports whether a request is input for the program in the session.
func types(v wire.Verb) bool { return v == wire.VerbType || v == wire.VerbKeys }

// clientFor returns the party's stream for a request. Input is for the shell that the party knows,
// or for its program. It starts nothing, and is rejected if that shell has ended, or if the session
// is unseen: then the caller cannot mean it.
func (a exchange) clientFor(ctx context.Context, r wire.Request) (*wire.Client, error) {
	if !types(r.Verb) {
		return a.stream(ctx, a.anew)
	}
	was := a.shell()
	client, err := a.stream(ctx, a.there)
	if err == nil && (was != "" && a.shell() != was || a.live.Unseen.Swap(false)) {
		return nil, shellEnded(a.target)
	}
	return client, err
}

// shellEnded rejects input for a program that ended with its shell.
func shellEnded(t wire.Target) *wire.Error {
	e := wire.Errorf(wire.CodeUnavailable, "what the text was for has ended with the shell of %s", t)
	e.Hint = "nothing was typed; run uses the new shell"
	return e
}

// send makes a request. If the connection breaks, it repeats the request to the same guest as the
// same party, if repeating has no second effect.
func (a exchange) send(ctx context.Context, client *wire.Client) (wire.Reply, error) {
	s, r, shell := &sent{party: client.Attached().Resume}, a.call.Request, a.shell()
	a.call.Sent()
	reply, err := request(ctx, client, r)
	if r.Op != "" {
		r.Incarnation = shell
	}
	for (r.Op != "" || r.Verb == wire.VerbWait || r.Verb == wire.VerbScreen) &&
		broke(ctx, client, err) {
		if client, err = a.resumed(ctx, s); err != nil {
			break
		}
		reply, err = request(ctx, client, r)
	}
	a.shellIs(reply.Incarnation)
	return reply, err
}

// answer returns the answer for the caller of c, from the guest's answer reply and err.
func (a exchange) answer(ctx, caller context.Context, reply wire.Reply, err error) (wire.Reply,
	error) {
	c := a.call
	lost := a.whyLost(ctx, caller, reply, err)
	if !hasResult(c.Request.Verb) {
		lost = nil // the error says everything
	}
	if lost == nil || reply.Result != nil {
		settled := err
		if settled == nil || lost != nil {
			settled = a.settled(ctx, reply)
		}
		c.complete(ctx, &reply, lost)
		a.noShell(reply.Result)
		if err = settled; lost != nil {
			err = lost // this error counts
		}
	}
	// The guest's answer came before its output.
	if frozen, ok := errors.AsType[*interrupt.FrozenError](err); ok && lost == nil &&
		hasResult(c.Request.Verb) {
		lost, reply.Result = frozen.Lost, nil
	}
	if lost != nil && reply.Result == nil {
		lastWords(caller, a.sandbox, a.live)
		reply, _ = c.lose(ctx, lost, maxReply/2)
		err = lost
	}
	// Check this last: no party may see the output.
	if unrecorded := lostUnrecorded(a.live); unrecorded != nil {
		reply, err = wire.Reply{Error: unrecorded}, unrecorded
		if hasResult(c.Request.Verb) {
			reply.Result = wire.LostResult(a.target, unrecorded)
		}
	}
	return reply, err
}

// settled waits until the copy has the output and events of an answer. So no caller learns of bytes
// that are not recorded, and the copy is never older than an answer.
func (a exchange) settled(ctx context.Context, reply wire.Reply) error {
	a.mu.Lock()
	seq := a.seq
	a.mu.Unlock()
	if err := a.live.CaughtUp(ctx, seq); err != nil {
		return a.sandbox.Reach(err)
	}
	if reply.Result == nil {
		return nil
	}
	for gen := a.live.Generation(); a.live.Len() < reply.Result.To; {
		next, err := a.live.Wait(ctx, gen)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		gen = next
	}
	return nil
}

// request makes a request on a stream, and sanitizes the guest's answer.
func request(ctx context.Context, client *wire.Client, r wire.Request) (wire.Reply, error) {
	reply, err := client.Request(ctx, r)
	if live.InboundReply(&reply); reply.Error != nil {
		err = reply.Error
	}
	return reply, err
}

// broke reports whether err is from a connection that broke. It returns false for the guest's
// answer, and if the caller has gone.
func broke(ctx context.Context, client *wire.Client, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	if e, ok := errors.AsType[*wire.Error](err); ok &&
		(e.Code != wire.CodeLost || client.Err() == nil) {
		return false
	}
	client.Close() // its reader may not have noticed yet
	return true
}

// Input sends bytes to the terminal and takes the keyboard if it is free. A *wire.Error says that
// the bytes were rejected; its message names the holder. If the connection to the sandbox breaks,
// Input sends the bytes that the guest has not accepted on the next connection, and none twice.
func (a *Attachment) Input(ctx context.Context, p []byte) error {
	if err := mayDrive(a.party); err != nil {
		return err
	}
	defer a.calling()()
	ctx, done := a.within(ctx)
	defer done()
	a.imu.Lock()
	defer a.imu.Unlock()
	if err := a.sandbox.Wake(ctx, a.party.Name); err != nil {
		return err
	}
	client, err := a.stream(ctx, a.anew)
	if err != nil {
		return err
	}
	s := &sent{party: client.Attached().Resume}
	if client != a.last {
		a.last, a.sent = client, client.Attached().Accepted
	}
	for {
		err = client.Input(ctx, p)
		if err == nil {
			a.live.Unseen.Store(false) // a person types, or a program that passes all bytes
			a.took()
		}
		if !broke(ctx, client, err) {
			// This includes rejected input, and input that no caller waits for now.
			a.sent = client.Sent()
			return err
		}
		if client, err = a.resumed(ctx, s); err != nil {
			return err
		}
		at := client.Attached()
		if at.Accepted < a.sent {
			return wire.LostError(wire.LostGuest,
				"the connection to the sandbox broke; it is not known how much of the input arrived")
		}
		p = p[min(at.Accepted-a.sent, uint64(len(p))):]
		a.last, a.sent = client, at.Accepted
	}
}

// noShell completes the error of a call on a machine that waited for a prompt of a shell which
// ended instead. The output of the program that runs in its place usually says why.
func (a exchange) noShell(r *wire.Result) {
	if r == nil || r.Error == nil || r.Phase != wire.PhaseDead ||
		r.Error.Code != wire.CodeUnavailable || !a.sandbox.IsHost() {
		return
	}
	if said := text.Line(a.live.LastLine(), 200); said != "" {
		r.Error.Message += ", and printed last: " + said
	}
	r.Error.Hint =
		"does the machine run something else than a shell for this account (ForceCommand in its " +
			"sshd_config)? describe says what is known of it"
}
