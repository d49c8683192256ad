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

// MayBecome returns an error unless commands may run as another user than the one that sessions of
// the sandbox run as. A host has no guest that could switch. In a sandbox whose programs cannot
// become root, nobody is given more rights than they have.
func (g *Guest) MayBecome() error {
	if g.IsHost() {
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s is a host: commands run as the user that logs in",
				g.Name()),
			Hint: "use sudo -n -u USER in the command"}
	}
	if f := g.sb.get(); confined(f) {
		return &wire.Error{Code: wire.CodeDenied,
			Message: "sandbox " + g.Name() + " runs as user " + f.Instance.User + " only",
			Hint:    "make one with --sudo, or without --user"}
	}
	return nil
}

// confined reports whether programs of a sandbox cannot become root: it was given another user, or
// directories read-only for the image's user.
func confined(f Record) bool {
	if f.Sudo || isRoot(f.Instance.User) {
		return false
	}
	writable := func(m sandbox.Mount) bool { return !m.ReadOnly }
	return f.Spec.User != "" || len(f.Mounts) > 0 && !slices.ContainsFunc(f.Mounts, writable)
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
			Hint:    fmt.Sprintf("restart it: sandboxd stop %[1]s; sandboxd start %[1]s", g.Name())}
	case ok:
		return refusal
	case errors.Is(err, connect.ErrLost):
		return g.Lost(ctx)
	}
	return err
}
