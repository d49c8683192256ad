package lifecycle

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// hostBackend is the name of the backend that takes machines as they are.
const hostBackend = "host"

// mayAdd says whether owner may make a sandbox of a machine: the daemon logs in there with the keys of
// its own user, so nobody else may say where.
func (o *Options) mayAdd(owner string) error {
	if owner != o.Owner {
		return &wire.Error{Code: wire.CodeDenied, Message: "hosts are added by the daemon's own user: it logs in there with their keys"}
	}
	return nil
}

// planHost makes spec one of a machine: the daemon's defaults for what it boots do not count.
func (o *Options) planHost(owner string, spec *NewSpec) error {
	if spec.Host.URI == "" {
		return nil
	}
	if err := o.mayAdd(owner); err != nil {
		return err
	}
	if spec.Backend != "" && spec.Backend != hostBackend {
		return wire.Errorf(wire.CodeUsage, "a host is not made by backend %s", oneLine(spec.Backend, 64))
	}
	spec.Backend = hostBackend
	return nil
}

// openControl makes control connections of backends whose sessions are beside their SSH server.
func (reg *Registry) openControl(ctx context.Context, inst sandbox.Instance) (*connect.Control, error) {
	be, err := reg.options.backend(inst.Backend)
	if err != nil {
		return nil, err
	}
	if d, ok := be.(connect.SessionDialer); ok {
		return d.DialSessions(ctx, inst)
	}
	return nil, nil //nolint:nilnil // the pool logs in to what Dial reaches
}

// isHost reports whether a backend's sandboxes are machines that are neither started nor stopped.
func isHost(be sandbox.Backend) bool {
	_, ok := be.(connect.SessionDialer)
	return ok
}

// askWithin is how long a person may take to type a password: as long as OpenSSH's server waits for
// it (LoginGraceTime).
const askWithin = 2 * time.Minute

// reachHost is an error of reaching a host, for its owner: it names the host, the step and what to
// do. nil leaves it to reach.
func reachHost(f Record, err error) error {
	e := &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.Name + ": " + firstLine(err)}
	kind := ErrBroken
	again := "sandboxd start " + f.Name + " tries again at once"
	switch {
	case errors.As(err, &e): // said already, and made printable where it came from
	case f.State == Deleting:
		e.Hint = "the removal goes on in the background, until the host answers; sandboxd ls shows it as long as it does"
	case errors.As(err, new(*attach.SilentError)):
		e.Hint = "look there: pgrep -af sandboxd-guest; what was asked may still be done when it goes on"
	case errors.Is(err, connect.ErrClosed):
		return nil
	case errors.Is(err, connect.ErrIdentity):
		kind = ErrIdentity
		e.Hint = "somebody may be in between; when the host was made anew, rm the sandbox and add it again"
	case errors.Is(err, connect.ErrLogin):
		e.Hint = "mend the key or the password, then " + again
	case errors.Is(err, sandbox.ErrUnsupported):
		e.Hint = "a host is taken as it is"
	default:
		e.Hint = "it is asked again until it answers; " + again
	}
	return &shown{public: e, kind: kind, err: err, passing: !isVerdict(err) && !errors.Is(err, syscall.ECONNREFUSED)}
}
