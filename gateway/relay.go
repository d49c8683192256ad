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

// relayed names in errors what a relayed connection is for.
const relayed = "commands, files and forwards"

// Open opens an SSH connection to a sandbox for one client, which closes it. It starts a stopped
// sandbox first. Errors wrap ErrUnknown, ErrBroken, ErrEngine or ErrIdentity of gateway/lifecycle.
// A read-only principal gets an error: such a connection allows everything.
func (r *Relay) Open(ctx context.Context, p Principal, name string,
	progress func(line string)) (*connect.Conn, error) {
	return r.OpenAs(ctx, p, name, "", progress)
}

// OpenAs is Open for a connection whose commands run as user: name or uid, either with :group, of
// the sandbox. Empty is the user of its sessions.
func (r *Relay) OpenAs(ctx context.Context, p Principal, name, user string,
	progress func(line string)) (*connect.Conn, error) {
	sb, p, err := r.hub.reachable(p, name, wire.RightDrive, relayed)
	if err == nil {
		err = p.mayMake("commands")
	}
	if err == nil && user != "" {
		err = sb.Guest().MayBecome(sb.Owner() == p.Name)
	}
	if err != nil {
		return nil, err
	}
	conn, err := sb.Guest().Upstream(ctx, p.Name, progress)
	if err != nil || user == "" {
		return conn, err
	}
	if err := sb.Guest().Become(ctx, conn, user); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// Blocked returns a function that lists the connections which the network policy of a sandbox
// blocked since Blocked was called, and whether the list is complete.
func (r *Relay) Blocked(p Principal, name string) (
	since func(context.Context) (all []wire.Denial, complete bool)) {
	sb, _, err := r.hub.reachable(p, name, wire.RightDrive, relayed)
	if err != nil {
		return func(context.Context) ([]wire.Denial, bool) { return []wire.Denial{}, true }
	}
	return sb.Sessions().BlockedSince()
}

// Wake resumes a paused sandbox before a client opens a channel on an existing connection to it.
func (r *Relay) Wake(ctx context.Context, p Principal, name string) error {
	sb, p, err := r.hub.reachable(p, name, wire.RightDrive, relayed)
	if err != nil {
		return err
	}
	return sb.Guest().Wake(ctx, p.Name)
}

// Lost returns why a command of p ended without an exit status, as an error with code lost. The
// command ran on a connection of its own. Lost may wait a moment until the reason is known.
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

// ExecEvent describes one relayed command in a sandbox's events.
type ExecEvent struct {
	// Shortened when long; empty for a shell without a terminal.
	Command string `json:"command"`
	User    string `json:"user,omitempty"` // that it ran as; empty is the user of the sessions
	Exit    int    `json:"exit"`           // -1 when the connection ended first
	Bytes   int64  `json:"bytes"`          // of standard output and error
}

// maxCommand bounds the command in an event, in bytes.
const maxCommand = 1024

// Recorder returns a function that adds a relayed command of p to a sandbox's events. Call Recorder
// when the command begins, so that it is recorded even if p loses access meanwhile. The returned
// function neither blocks nor fails; an event that cannot be stored is logged.
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
