package lifecycle

import (
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// answersWithin is how long a container that runs may take to answer again after a connection
	// to it broke.
	answersWithin = 5 * time.Second
)

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

var fateText = map[string]string{wire.LostStopped: "it was stopped", wire.LostKilled: "its processes were killed",
	wire.LostMemory: "it had no memory left", wire.LostEngine: "the container engine was restarted", wire.LostRemoved: "it was removed"}

// pausedError says what a pause of sb does to the calls that are under way.
func pausedError(name string) *attach.FrozenError {
	e := &attach.FrozenError{Lost: wire.LostError(wire.LostPaused, "sandbox "+name+" was paused"),
		Refused: wire.Errorf(wire.CodeUnavailable, "sandbox %s was paused before the call was made", name)}
	e.Lost.Hint = "what runs in it goes on when it is resumed: sandboxd resume " + name
	e.Refused.Hint = "make the call again to resume the sandbox"
	return e
}

// stoppedError refuses the calls that were not sent yet when sb was stopped. Only a later call
// starts it again.
func stoppedError(name string) error {
	e := wire.Errorf(wire.CodeUnavailable, "sandbox %s was stopped before the call was made", name)
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
