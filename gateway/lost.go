package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// answersWithin is how long a container that runs may take to answer again after a connection
	// to it broke.
	answersWithin = 5 * time.Second
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

// Over is the loss of what was under way in b if b has ended, is about to, is paused, or its guest
// is silent; nil if it runs as far as is known.
func (b *box) Over() *wire.Error {
	gone, silent := b.isGone(), b.listening.silence()
	b.mu.Lock()
	f, fate := b.facts, b.fate
	b.mu.Unlock()
	switch {
	case gone, f.state == Deleting:
		return wire.LostError(wire.LostRemoved, fmt.Sprintf("sandbox %s was removed", f.name))
	case f.state == Paused:
		return b.pausedError().Lost
	case fate != "":
		return wire.LostError(fate, fmt.Sprintf("sandbox %s has ended: %s", f.name, fateText[fate]))
	case f.state != Running && f.state != Broken:
		return wire.LostError(wire.LostStopped, fmt.Sprintf("sandbox %s is %s", f.name, f.state))
	case silent != nil:
		return silent.Lost
	}
	return nil
}

var fateText = map[string]string{wire.LostStopped: "it was stopped", wire.LostKilled: "its processes were killed",
	wire.LostMemory: "it had no memory left", wire.LostEngine: "the container engine was restarted", wire.LostRemoved: "it was removed"}

// Patience is how long b may take to answer again after a connection to it broke. A host may be
// behind a network that fails for a while, and its guest remembers a party for that long.
func (b *box) Patience() time.Duration {
	if b.get().inst.Host.URI != "" {
		return rememberedFor
	}
	return answersWithin
}

// Again returns the control connection of b after one broke, without starting anything. An error
// that cannot pass is a *wire.Error with code lost.
func (b *box) Again(ctx context.Context) (*connect.Control, error) {
	if lost := b.Over(); lost != nil {
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
	if lost := b.Over(); lost != nil {
		return nil, lost
	}
	if errors.Is(err, sandbox.ErrEngine) {
		return nil, wire.LostError(wire.LostEngine, "the container engine does not answer")
	}
	return nil, b.Reach(err)
}

// Answers waits until b answers after a connection to it broke. An error is the loss of what was
// under way on that.
func (b *box) Answers(ctx context.Context) *wire.Error {
	ctx, cancel := context.WithTimeout(ctx, b.Patience())
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		c, err := b.Again(ctx)
		if err == nil { // it may have broken, too, and nobody has noticed
			_, err = c.Do(ctx, wire.Control{Do: "health"})
		}
		switch lost := (*wire.Error)(nil); {
		case err == nil:
			return nil
		case errors.As(err, &lost) && lost.Code == wire.CodeLost && lost.Reason != "":
			return lost
		case !sleep(ctx, pause):
			return b.Unreachable(err)
		}
	}
}

// Unreachable is the loss of what was under way in b, which does not answer.
func (b *box) Unreachable(err error) *wire.Error {
	if lost := b.Over(); lost != nil {
		return lost
	}
	f := b.get()
	if f.inst.Host.URI != "" {
		return wire.LostError(wire.LostHost, fmt.Sprintf("sandbox %s: the connection to its host broke", f.name))
	}
	b.hub.log.Debug("a call is lost", "sandbox", b.id, "err", err)
	return wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: its guest does not answer any more", f.name))
}

// Lost is the error of a command of p that was under way in a sandbox on a connection of its own,
// and whose end nobody told: it has code lost and says why. It may wait a moment until that is
// known.
func (h *Hub) Lost(ctx context.Context, p Principal, name string) error {
	b, _, err := h.reachable(p, name, wire.RightWatch, "")
	if err != nil {
		return wire.LostError(wire.LostRemoved, fmt.Sprintf("sandbox %s was removed", name))
	}
	if lost := b.Answers(ctx); lost != nil {
		return lost
	}
	return wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: the connection to its guest broke", name))
}

// CutOff returns the loss of a call that was sent and whose caller was cut off for cause: by the
// end of the daemon, or of the caller's access.
func (h *Hub) CutOff(cause error) *wire.Error { return attach.CutOff(cause, h.Public(cause)) }

// pausedError says what a pause of b does to the calls that are under way.
func (b *box) pausedError() *attach.FrozenError {
	name := b.Name()
	e := &attach.FrozenError{Lost: wire.LostError(wire.LostPaused, "sandbox "+name+" was paused"),
		Refused: wire.Errorf(wire.CodeUnavailable, "sandbox %s was paused before the call was made", name)}
	e.Lost.Hint = "what runs in it goes on when it is resumed: sandboxd resume " + name
	e.Refused.Hint = "make the call again to resume the sandbox"
	return e
}

// stoppedError refuses the calls that were not sent yet when b was stopped. Only a later call
// starts it again.
func (b *box) stoppedError() error {
	e := wire.Errorf(wire.CodeUnavailable, "sandbox %s was stopped before the call was made", b.Name())
	e.Hint = "make the call again to start the sandbox"
	return e
}

// firstRetry and maxRetry are pauses between tries to reach a sandbox again.
const (
	firstRetry = 50 * time.Millisecond
	maxRetry   = time.Second

	// rememberedFor is how long a guest remembers a party that was cut off.
	rememberedFor = 30 * time.Second
)

// Sessions are those of b that are followed.
func (b *box) Sessions() *live.Sessions { return b.sessions }

// IsHost reports whether b is a machine that is taken as it is.
func (b *box) IsHost() bool { return b.get().inst.Host.URI != "" }

// IsPaused reports whether b is paused.
func (b *box) IsPaused() bool { return b.get().state == Paused }

// StopsAfter is how long after everybody has left b stops; 0 when it does not, or something runs in
// it.
func (b *box) StopsAfter() time.Duration {
	if b.working() != "" {
		return 0
	}
	return b.get().life.TTL
}

// Stops ends the calls that were not sent yet when b is stopped.
func (b *box) Stops() *attach.Interrupter { return &b.stops }
