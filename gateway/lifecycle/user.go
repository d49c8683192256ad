package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MayBecome returns an error unless commands of the owner, or of a principal that the sandbox is
// shared with, may run as another user than its sessions. A host has no guest that could switch.
// Where programs cannot become root, a share gives no more rights than they have.
func (g *Guest) MayBecome(owner bool) error {
	if g.IsHost() {
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s is a host: commands run as the user that logs in",
				g.Name()),
			Hint: "use sudo -n -u USER in the command"}
	}
	f := g.sb.get()
	if mayBecome(f, owner) {
		return nil
	}
	e := &wire.Error{Code: wire.CodeDenied,
		Message: "sandbox " + g.Name() + " runs as user " + f.Instance.User + " only",
		Hint:    "make one with --sudo, or without --user"}
	if mayBecome(f, true) {
		e.Message += " for principals that it is shared with"
		e.Hint = "ask its owner to run the command"
	}
	return e
}

// mayBecome reports whether commands of the owner of a sandbox, or of another principal, may run as
// another user. The owner could have given it one instead of the image's, unless directories are
// mounted.
func mayBecome(f Record, owner bool) bool {
	return !confined(f) || owner && f.Spec.User == "" && len(f.Mounts) == 0
}

// confined reports whether programs of a sandbox cannot become root: neither are they, nor may they
// use sudo(8).
func confined(f Record) bool {
	writable := func(m sandbox.Mount) bool { return !m.ReadOnly }
	sudo := f.Sudo || f.Spec.User == "" && slices.ContainsFunc(f.Mounts, writable)
	return !sudo && !isRoot(f.Instance.User)
}

// isRoot reports whether a user, as name or uid with or without a group, is root.
func isRoot(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	return name == "root" || name == "0"
}

// Become makes user the one that commands on conn, a connection to the sandbox, run as.
func (g *Guest) Become(ctx context.Context, conn *connect.Conn, user string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWithin, wire.Errorf(wire.CodeUnavailable,
		"sandbox %s does not answer", g.Name()))
	defer cancel()
	err := conn.SetUser(ctx, user)
	refusal, ok := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
		return nil
	case ok && refusal.Code == wire.CodeUnavailable && ctx.Err() == nil:
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: "the guest of sandbox " + g.Name() + " is too old to change the user",
			Hint:    "a sandbox keeps the guest that it was created with; create a new sandbox"}
	case ok:
		return refusal
	case errors.Is(err, connect.ErrLost):
		return g.Lost(ctx)
	}
	return err
}
