package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Relay authorises SSH connections that are relayed to sandboxes, and records what runs on them.
type Relay struct{ hub *Hub }

// what a relayed connection is for, in refusals.
const relayed = "commands, files and forwards"

// Open opens an SSH connection to a sandbox for one client, which closes it. A stopped sandbox is
// started first. Errors wrap ErrUnknown, ErrBroken, ErrEngine or ErrIdentity of gateway/lifecycle.
// A read-only principal gets none: everything can be done on it.
func (r *Relay) Open(ctx context.Context, p Principal, name string, progress func(line string)) (*connect.Conn, error) {
	sb, p, err := r.hub.reachable(p, name, wire.RightDrive, relayed)
	if err == nil {
		err = p.mayMake("commands")
	}
	if err != nil {
		return nil, err
	}
	return sb.Guest().Upstream(ctx, p.Name, progress)
}

// Wake resumes a sandbox that is paused, for a client that has a connection to it and opens
// something on it.
func (r *Relay) Wake(ctx context.Context, p Principal, name string) error {
	sb, _, err := r.hub.reachable(p, name, wire.RightDrive, relayed)
	if err != nil {
		return err
	}
	return sb.Guest().Wake(ctx)
}

// Lost returns the error of a command of p that was under way on a connection of its own and whose
// end was not reported: it has code lost and says why. It may wait a moment until that is known.
func (r *Relay) Lost(ctx context.Context, p Principal, name string) error {
	sb, _, err := r.hub.reachable(p, name, wire.RightWatch, "")
	switch {
	case errors.Is(err, lifecycle.ErrUnknown):
		return wire.LostError(wire.LostRemoved, fmt.Sprintf("sandbox %s was removed", name))
	case err != nil:
		return err
	}
	return sb.Guest().Lost(ctx)
}

// ExecEvent is one relayed command, for the sandbox's events.
type ExecEvent struct {
	Command string `json:"command"` // as asked for; shortened when long. Empty is a shell without a terminal
	Exit    int    `json:"exit"`    // -1 when the connection ended first
	Bytes   int64  `json:"bytes"`   // of standard output and error
}

// maxCommand is how much of a command its event keeps, in bytes.
const maxCommand = 1024

// Recorder returns a function that adds a relayed command of p to the events of a sandbox. It is
// asked for when the command begins: what p has run is recorded also when its access has ended
// meanwhile. The function neither waits nor fails: what cannot be stored is logged.
func (r *Relay) Recorder(p Principal, name string) (record func(ExecEvent)) {
	sb, p, err := r.hub.reachable(p, name, wire.RightDrive, "commands")
	if err != nil {
		return func(ExecEvent) {}
	}
	return func(e ExecEvent) {
		if len(e.Command) > maxCommand {
			e.Command = strings.ToValidUTF8(e.Command[:maxCommand], "") + "…"
		}
		sb.Log("exec", struct {
			By string `json:"by"`
			ExecEvent
		}{p.party(p.Kind, "").String(), e})
	}
}
