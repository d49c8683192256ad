package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// answersWithin is how long a container that runs may take to answer again after a connection to it broke.
	answersWithin = 5 * time.Second
	// lastOutput is how long the replica may take to end once its sandbox has.
	lastOutput = time.Second
	// maxRepeats is how often a call is repeated to the guest that has it: a guest that ends each connection gets it no more.
	maxRepeats = 20
)

// doom says why b, which somebody is about to end, ends. Empty takes it back.
func (b *box) doom(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fate = reason
}

// fateOf is why an instance does not run.
func fateOf(s sandbox.Status) string {
	switch {
	case s.OOMKilled:
		return wire.LostMemory
	case s.EngineRestarted:
		return wire.LostEngine
	case s.ExitCode > 128:
		return wire.LostKilled
	}
	return wire.LostStopped
}

// over is the loss of what was under way in b if b has ended, is about to, or is paused; nil if it runs as far as is known.
func (b *box) over() *wire.Error {
	gone := b.isGone()
	b.mu.Lock()
	f, fate := b.facts, b.fate
	b.mu.Unlock()
	switch {
	case gone, f.state == Deleting:
		return wire.LostError(wire.LostRemoved, fmt.Sprintf("sandbox %s was removed", f.name))
	case f.state == Paused:
		return b.pausedError().lost
	case fate != "":
		return wire.LostError(fate, fmt.Sprintf("sandbox %s has ended: %s", f.name, fateText[fate]))
	case f.state != Running && f.state != Broken:
		return wire.LostError(wire.LostStopped, fmt.Sprintf("sandbox %s is %s", f.name, f.state))
	}
	return nil
}

var fateText = map[string]string{wire.LostStopped: "it was stopped", wire.LostKilled: "its processes were killed",
	wire.LostMemory: "it had no memory left", wire.LostEngine: "the container engine was restarted", wire.LostRemoved: "it was removed"}

// patience is how long b may take to answer again after a connection to it broke. A host may be behind a network that fails for a
// while, and its guest remembers a party for that long.
func (b *box) patience() time.Duration {
	if b.get().inst.Host.URI != "" {
		return rememberedFor
	}
	return answersWithin
}

// again returns the control connection of b after one broke, without starting anything. An error that cannot pass is a *wire.Error
// with code lost.
func (b *box) again(ctx context.Context) (*connect.Control, error) {
	if lost := b.over(); lost != nil {
		return nil, lost
	}
	inst := b.get().inst
	within, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	c, err := b.hub.pool.Control(within, inst)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	b.inspect(ctx, inst, err)
	if lost := b.over(); lost != nil {
		return nil, lost
	}
	if errors.Is(err, sandbox.ErrEngine) {
		return nil, wire.LostError(wire.LostEngine, "the container engine does not answer")
	}
	return nil, b.reach(err)
}

// answersAgain waits until b answers after a connection to it broke. An error is the loss of what was under way on that.
func (b *box) answersAgain(ctx context.Context) *wire.Error {
	ctx, cancel := context.WithTimeout(ctx, b.patience())
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		c, err := b.again(ctx)
		if err == nil { // it may have broken, too, and nobody has noticed
			_, err = c.Do(ctx, wire.Control{Do: "health"})
		}
		switch lost := (*wire.Error)(nil); {
		case err == nil:
			return nil
		case errors.As(err, &lost) && lost.Code == wire.CodeLost && lost.Reason != "":
			return lost
		case !sleep(ctx, pause):
			return b.unreachable(err)
		}
	}
}

// unreachable is the loss of what was under way in b, which does not answer.
func (b *box) unreachable(err error) *wire.Error {
	if lost := b.over(); lost != nil {
		return lost
	}
	f := b.get()
	if f.inst.Host.URI != "" {
		return wire.LostError(wire.LostHost, fmt.Sprintf("sandbox %s: the connection to its host broke", f.name))
	}
	b.hub.log.Debug("a call is lost", "sandbox", b.id, "err", err)
	return wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: its guest does not answer any more", f.name))
}

// Lost is the error of a command of p that was under way in a sandbox on a connection of its own, and whose end nobody told: it has code
// lost and says why. It may wait a moment until that is known.
func (h *Hub) Lost(ctx context.Context, p Principal, name string) error {
	b, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return wire.LostError(wire.LostRemoved, fmt.Sprintf("sandbox %s was removed", name))
	}
	if lost := b.answersAgain(ctx); lost != nil {
		return lost
	}
	return wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: the connection to its guest broke", name))
}

// sent is what was given to a guest: it is given to no other.
type sent struct {
	party   string // the secret of the party that it was sent for
	repeats int
}

// resumed returns a stream of the party for which s was sent, after the one before broke. An error is the loss of s, or ctx's cause.
func (a *Attachment) resumed(ctx context.Context, s *sent) (*wire.Client, error) {
	within, cancel := context.WithTimeout(ctx, a.box.patience())
	defer cancel()
	if s.repeats++; s.repeats > maxRepeats {
		return nil, wire.LostError(wire.LostGuest, fmt.Sprintf("the guest of sandbox %s ends each connection with the call", a.box.title()))
	}
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		client, err := a.stream(within, a.resume)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		lost, _ := errors.AsType[*wire.Error](err)
		switch {
		case err == nil && client.Attached().Resume == s.party:
			return client, nil
		case err == nil, lost != nil && lost.Code == wire.CodeNotFound:
			if over := a.box.over(); over != nil {
				return nil, over
			}
			return nil, wire.LostError(wire.LostGuest, fmt.Sprintf("the guest of sandbox %s that had the call has ended", a.box.title()))
		case lost != nil && lost.Reason != "":
			return nil, lost
		case !sleep(within, pause):
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, a.box.unreachable(err)
		}
	}
}

// request makes a request on a stream, and returns of the guest's answer what a guest may say.
func (a *Attachment) request(ctx context.Context, client *wire.Client, r wire.Request) (wire.Reply, error) {
	reply, err := client.Request(ctx, r)
	if live.InboundReply(&reply); reply.Error != nil {
		err = reply.Error
	}
	return reply, err
}

// broke reports whether err is that of a connection which broke, rather than the guest's answer or the caller's leaving.
func broke(ctx context.Context, client *wire.Client, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	if e, ok := errors.AsType[*wire.Error](err); ok && (e.Code != wire.CodeLost || client.Err() == nil) {
		return false
	}
	client.Close() // its reader may not have noticed yet
	return true
}

// whyLost is the loss of a call to which reply and err are the answer; nil if that is how it ended, or the caller has left
// one that nothing can come of.
func (a *Attachment) whyLost(ctx, caller context.Context, c *call, reply wire.Reply, err error) *wire.Error {
	answered := reply.Result != nil || reply.Error != nil
	lost, _ := errors.AsType[*wire.Error](err)
	var paused *pausedError
	switch {
	case diedWith(reply.Result), err == nil:
		return c.lossOf(reply)
	case lost != nil && lost.Code == wire.CodeLost && lost.Reason == "": // the session ended, for which its sandbox may be the reason
		if over := a.box.over(); over != nil {
			return over
		}
		if reply.Result != nil {
			return nil
		}
		return wire.LostError(wire.LostGuest, lost.Message)
	case answered && (lost == nil || lost.Code != wire.CodeLost):
		return nil // it is the guest's answer
	case caller.Err() != nil:
		if c.Request.Op != "" && !answered {
			return a.given(caller)
		}
		return nil
	case lost != nil && lost.Code == wire.CodeLost:
		return lost
	case errors.As(context.Cause(ctx), &paused):
		return paused.lost
	case errors.As(err, new(*silentError)):
		return wire.LostError(wire.LostHost, firstLine(a.box.reach(err)))
	case a.Err() != nil:
		return wire.LostError(wire.LostDetached, a.hub.Public(a.Err()).Message)
	}
	return a.box.unreachable(err)
}

// given is the loss of a request that was sent and whose caller has been cut off: by the end of the daemon, or of its access.
func (a *Attachment) given(caller context.Context) *wire.Error {
	why := a.hub.Public(context.Cause(caller))
	if errors.Is(context.Cause(caller), ErrClosed) {
		return wire.LostError(wire.LostGateway, why.Message)
	}
	return wire.LostError(wire.LostDetached, why.Message)
}

// resume opens the stream as the party that it was, and as no other. It starts nothing.
func (a *Attachment) resume(ctx context.Context) (*wire.Client, error) {
	c, err := a.box.again(ctx)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	secret := a.resumes
	a.mu.Unlock()
	return a.open(ctx, c, wire.Attach{Session: a.target.Session, Resume: secret})
}

// there is anew in a sandbox that runs and a session that exists: it starts nothing. Nothing was sent yet, so that the loss of what
// runs in the sandbox refuses the request.
func (a *Attachment) there(ctx context.Context) (*wire.Client, error) {
	client, err := a.openOn(ctx, a.box.again, false)
	if lost, ok := errors.AsType[*wire.Error](err); ok && lost.Code == wire.CodeLost && lost.Reason != "" {
		return nil, &wire.Error{Code: wire.CodeUnavailable, Message: lost.Message, Hint: "nothing was typed; run starts it again"}
	}
	return client, err
}

// shellIs notes the incarnation of the shell that has answered a call; empty is not known.
func (a *Attachment) shellIs(incarnation string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if incarnation != "" {
		a.incarnation = live.Cut(incarnation, live.MaxWord)
	}
}

// shell is the incarnation of the shell that the party knows; empty before it first drives.
func (a *Attachment) shell() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.incarnation
}

// lastWords waits a moment until the copy of a session whose sandbox has ended has all of it.
func (b *box) lastWords(ctx context.Context, l *live.Session) {
	if b.over() == nil || b.get().state == Paused {
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

// pausedOr is the pause that ended ctx, if one did; else err.
func pausedOr(ctx context.Context, err error) error {
	if paused, ok := errors.AsType[*pausedError](context.Cause(ctx)); ok && err != nil {
		return paused
	}
	return err
}
