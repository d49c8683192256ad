package lifecycle

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

// doom says why sb, which somebody is about to end, ends. Empty takes it back.
func (sb *Sandbox) doom(reason string) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.fate = reason
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

// Over is the loss of what was under way in sb if sb has ended, is about to, is paused, or its guest
// is silent; nil if it runs as far as is known.
func (sb *Sandbox) Over() *wire.Error {
	gone, silent := sb.isGone(), sb.listening.silence()
	sb.mu.Lock()
	f, fate := sb.record, sb.fate
	sb.mu.Unlock()
	switch {
	case gone, f.State == Deleting:
		return wire.LostError(wire.LostRemoved, fmt.Sprintf("sandbox %s was removed", f.Name))
	case f.State == Paused:
		return sb.pausedError().Lost
	case fate != "":
		return wire.LostError(fate, fmt.Sprintf("sandbox %s has ended: %s", f.Name, fateText[fate]))
	case f.State != Running && f.State != Broken:
		return wire.LostError(wire.LostStopped, fmt.Sprintf("sandbox %s is %s", f.Name, f.State))
	case silent != nil:
		return silent.Lost
	}
	return nil
}

var fateText = map[string]string{wire.LostStopped: "it was stopped", wire.LostKilled: "its processes were killed",
	wire.LostMemory: "it had no memory left", wire.LostEngine: "the container engine was restarted", wire.LostRemoved: "it was removed"}

// Patience is how long sb may take to answer again after a connection to it broke. A host may be
// behind a network that fails for a while, and its guest remembers a party for that long.
func (sb *Sandbox) Patience() time.Duration {
	if sb.get().Instance.Host.URI != "" {
		return rememberedFor
	}
	return answersWithin
}

// Again returns the control connection of sb after one broke, without starting anything. An error
// that cannot pass is a *wire.Error with code lost.
func (sb *Sandbox) Again(ctx context.Context) (*connect.Control, error) {
	if lost := sb.Over(); lost != nil {
		return nil, lost
	}
	inst := sb.get().Instance
	within, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	c, err := sb.reg.pool.Control(within, inst)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	sb.inspect(ctx, inst, err)
	if lost := sb.Over(); lost != nil {
		return nil, lost
	}
	if errors.Is(err, sandbox.ErrEngine) {
		return nil, wire.LostError(wire.LostEngine, "the container engine does not answer")
	}
	return nil, sb.Reach(err)
}

// Answers waits until sb answers after a connection to it broke. An error is the loss of what was
// under way on that.
func (sb *Sandbox) Answers(ctx context.Context) *wire.Error {
	ctx, cancel := context.WithTimeout(ctx, sb.Patience())
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		c, err := sb.Again(ctx)
		if err == nil { // it may have broken, too, and nobody has noticed
			_, err = c.Do(ctx, wire.Control{Do: "health"})
		}
		switch lost := (*wire.Error)(nil); {
		case err == nil:
			return nil
		case errors.As(err, &lost) && lost.Code == wire.CodeLost && lost.Reason != "":
			return lost
		case !sleep(ctx, pause):
			return sb.Unreachable(err)
		}
	}
}

// Unreachable is the loss of what was under way in sb, which does not answer.
func (sb *Sandbox) Unreachable(err error) *wire.Error {
	if lost := sb.Over(); lost != nil {
		return lost
	}
	f := sb.get()
	if f.Instance.Host.URI != "" {
		return wire.LostError(wire.LostHost, fmt.Sprintf("sandbox %s: the connection to its host broke", f.Name))
	}
	sb.reg.log.Debug("a call is lost", "sandbox", sb.id, "err", err)
	return wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: its guest does not answer any more", f.Name))
}

// Lost is the error of a command that was under way in the sandbox on a connection of its own and
// whose end was not reported: it has code lost and says why. It may wait a moment until that is
// known.
func (sb *Sandbox) Lost(ctx context.Context) error {
	if lost := sb.Answers(ctx); lost != nil {
		return lost
	}
	return wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: the connection to its guest broke", sb.Name()))
}

// pausedError says what a pause of sb does to the calls that are under way.
func (sb *Sandbox) pausedError() *attach.FrozenError {
	name := sb.Name()
	e := &attach.FrozenError{Lost: wire.LostError(wire.LostPaused, "sandbox "+name+" was paused"),
		Refused: wire.Errorf(wire.CodeUnavailable, "sandbox %s was paused before the call was made", name)}
	e.Lost.Hint = "what runs in it goes on when it is resumed: sandboxd resume " + name
	e.Refused.Hint = "make the call again to resume the sandbox"
	return e
}

// stoppedError refuses the calls that were not sent yet when sb was stopped. Only a later call
// starts it again.
func (sb *Sandbox) stoppedError() error {
	e := wire.Errorf(wire.CodeUnavailable, "sandbox %s was stopped before the call was made", sb.Name())
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

// Sessions are those of sb that are followed.
func (sb *Sandbox) Sessions() *live.Sessions { return sb.sessions }

// IsHost reports whether sb is a machine that is taken as it is.
func (sb *Sandbox) IsHost() bool { return sb.get().Instance.Host.URI != "" }

// IsPaused reports whether sb is paused.
func (sb *Sandbox) IsPaused() bool { return sb.get().State == Paused }

// StopsAfter is how long after everybody has left sb stops; 0 when it does not, or something runs in
// it.
func (sb *Sandbox) StopsAfter() time.Duration {
	if sb.working() != "" {
		return 0
	}
	return sb.get().Life.TTL
}

// Stops ends the calls that were not sent yet when sb is stopped.
func (sb *Sandbox) Stops() *attach.Interrupter { return &sb.stops }
