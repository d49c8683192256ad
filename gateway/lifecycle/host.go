package lifecycle

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// hostBackend is the name of the backend of existing machines.
const hostBackend = "host"

// mayAdd returns an error unless owner may add hosts: the daemon logs in there with the admin's
// keys.
func (o *Options) mayAdd(owner string) error {
	if owner != o.Owner {
		return &wire.Error{Code: wire.CodeDenied,
			Message: "hosts: only the admin may add them, because the daemon logs in with the " +
				"admin's keys"}
	}
	return nil
}

// planHost sets the backend of a spec with a host. The daemon's defaults for containers do not
// apply to hosts.
func (o *Options) planHost(owner string, spec *NewSpec) error {
	if spec.Host.URI == "" {
		return nil
	}
	if err := o.mayAdd(owner); err != nil {
		return err
	}
	if spec.Backend != "" && spec.Backend != hostBackend {
		return wire.Errorf(wire.CodeUsage, "backend %s cannot be used for a host",
			oneLine(spec.Backend, 64))
	}
	spec.Backend = hostBackend
	return nil
}

// openControl opens the control connection of backends whose sessions are beside their SSH server.
func (reg *Registry) openControl(ctx context.Context,
	inst sandbox.Instance) (*connect.Control, error) {
	be, err := reg.options.backend(inst.Backend)
	if err != nil {
		return nil, err
	}
	if d, ok := be.(connect.SessionDialer); ok {
		return d.DialSessions(ctx, inst)
	}
	return nil, nil //nolint:nilnil // the pool logs in to what Dial reaches
}

// isHost reports whether a backend's sandboxes are existing machines, which are neither started nor
// stopped.
func isHost(be sandbox.Backend) bool {
	_, ok := be.(connect.SessionDialer)
	return ok
}

// askWithin is how long a person may take to type a password. OpenSSH's server waits as long
// (LoginGraceTime).
const askWithin = 2 * time.Minute

// reachHost converts an error of reaching a host for its owner. It names the host, the step and
// what to do. nil leaves the conversion to Reach.
func reachHost(f Record, err error) error {
	e := &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.Name + ": " +
		firstLine(err)}
	kind := ErrBroken
	again := "sandboxd start " + f.Name + " retries now"
	switch {
	case errors.As(err, &e): // converted where it came from
	case f.State == Deleting:
		e.Hint = "the removal continues in the background until the host answers; sandboxd ls " +
			"shows it until then"
	case errors.As(err, new(*interrupt.SilentError)):
		e.Hint = "check on the host: pgrep -af sandboxd-guest; the call may still be " +
			"carried out later"
	case errors.Is(err, connect.ErrClosed):
		return nil
	case errors.Is(err, connect.ErrIdentity):
		kind = ErrIdentity
		e.Hint = "the connection may be intercepted; if the host was reinstalled, rm the sandbox " +
			"and add it again"
	case errors.Is(err, connect.ErrLogin):
		e.Hint = "fix the key or the password, then " + again
	case errors.Is(err, sandbox.ErrUnsupported):
		e.Hint = "hosts do not support it"
	case errors.Is(err, io.ErrUnexpectedEOF):
		e.Message = "sandbox " + f.Name + ": the host closed the connection when the session began"
		e.Hint = "the log of its SSH server says why, such as that it cannot make terminals; " + again
	default:
		e.Hint = "the daemon retries until it answers; " + again
	}
	return &publicError{public: e, kind: kind, err: err, passing: !isVerdict(err) &&
		!errors.Is(err, syscall.ECONNREFUSED)}
}
