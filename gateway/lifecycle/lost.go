package lifecycle

import (
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// answersWithin is how long a running container may take to answer after a connection to it
	// broke.
	answersWithin = 5 * time.Second
)

// endReasonOf returns why an instance does not run, as one of the wire.Lost constants.
func endReasonOf(s sandbox.Status) string {
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

var endReasonText = map[string]string{wire.LostStopped: "it was stopped",
	wire.LostKilled: "its processes were killed",
	wire.LostMemory: "it had no memory left", wire.LostEngine: "the container engine was restarted",
	wire.LostRemoved: "it was removed"}

// pausedError ends the calls under way when sb is paused.
func pausedError(name string) *interrupt.FrozenError {
	e := &interrupt.FrozenError{
		Lost: wire.LostError(wire.LostPaused, "sandbox "+name+" was paused"),
		Refused: wire.Errorf(wire.CodeUnavailable, "sandbox %s was paused before the call was made",
			name),
	}
	e.Lost.Hint = "its processes continue when it is resumed: sandboxd resume " + name
	e.Refused.Hint = "make the call again to resume the sandbox"
	return e
}

// stoppedError ends the calls that were not sent yet when sb is stopped. A later call starts it
// again.
func stoppedError(name string) error {
	e := wire.Errorf(wire.CodeUnavailable, "sandbox %s was stopped before the call was made", name)
	e.Hint = "make the call again to start the sandbox"
	return e
}

const (
	// firstRetry and maxRetry bound the pause between attempts to reach a sandbox again.
	firstRetry = 50 * time.Millisecond
	maxRetry   = time.Second

	// rememberedFor is how long a guest remembers a party that was cut off.
	rememberedFor = 30 * time.Second
)

// Sessions returns the sessions that the daemon follows.
func (sb *Sandbox) Sessions() *live.Sessions { return sb.sessions }

// IsHost reports whether sb is an existing machine.
func (sb *Sandbox) IsHost() bool { return sb.get().Instance.Host.URI != "" }

// IsPaused reports whether sb is paused.
func (sb *Sandbox) IsPaused() bool { return sb.get().State == Paused }
