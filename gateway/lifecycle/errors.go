package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Errors that callers branch on, besides the codes of *wire.Error. Each comes wrapped together with
// a *wire.Error for the client.
var (
	// Unknown and forbidden alike; code not_found.
	ErrUnknown = errors.New("no such sandbox for this principal")
	// It does not answer or cannot start.
	ErrBroken = errors.New("sandbox is broken")
	ErrEngine = errors.New("engine does not answer") // the backend, not the sandbox
	// Its SSH server presents another key.
	ErrIdentity = errors.New("identity changed")
	ErrClosed   = interrupt.ErrClosed
)

// publicError is an error with the part of it that a client may see. Its own text is for the log.
type publicError struct {
	public *wire.Error // for the client
	kind   error       // one of the sentinels above; may be nil
	err    error       // the cause; may be nil

	missing string // name of the sandbox that does not exist; only with ErrUnknown
	passing bool   // only a connection failed: a retry may succeed
}

func (e *publicError) Error() string {
	if e.err != nil {
		return e.public.Message + ": " + e.err.Error()
	}
	return e.public.Message
}

func (e *publicError) Unwrap() []error {
	all := []error{e.public}
	for _, err := range []error{e.kind, e.err} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// Passing reports whether only a connection to a sandbox broke or failed, so that a retry may
// succeed.
func (e *publicError) Passing() bool { return e.passing }

// Public returns what a client may see of err: the *wire.Error within it, or "internal error" with
// an id. err itself is logged under that id. Public(nil) is nil.
func (reg *Registry) Public(err error) *wire.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return &wire.Error{Code: wire.CodeLost, Message: "the call was cancelled"}
	case errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Code: wire.CodeUnavailable, Message: "the call timed out"}
	case errors.Is(err, interrupt.ErrDisconnected):
		return &wire.Error{Code: wire.CodeDenied, Message: "the owner disconnected you"}
	case errors.Is(err, interrupt.ErrUnshared):
		return &wire.Error{Code: wire.CodeDenied,
			Message: "the sandbox is no longer shared with you"}
	case errors.Is(err, interrupt.ErrLeft):
		return &wire.Error{Code: wire.CodeLost, Message: "the calling party has left the session"}
	case errors.Is(err, ErrClosed):
		return &wire.Error{Code: wire.CodeLost, Message: ErrClosed.Error(),
			Hint: "try again when the daemon is back; sessions keep running"}
	}
	id := rand.Text()[:8]
	reg.log.Error("internal error", "id", id, "err", err)
	return wire.Errorf(wire.CodeInternal, "internal error %s", id)
}

// NotFound returns the error for a missing sandbox and for one of another owner. The two look
// alike. It is ErrUnknown, with a hint how to create the sandbox, unless the name is invalid.
func (reg *Registry) NotFound(name string) error {
	e := wire.Errorf(wire.CodeNotFound, "no sandbox %s for you", name)
	if _, err := wire.ParseLabel("sandbox name", name); err != nil {
		return err // an invalid name reveals nothing
	}
	create := "ssh sandboxd@gw new " + name
	if reg.options.ControlCommand != nil {
		create = reg.options.ControlCommand("new " + name)
	}
	e.Hint = "create it: " + create
	return &publicError{public: e, kind: ErrUnknown, missing: name}
}

// Missing returns the name of the sandbox that err, an error of NotFound, is about. It is empty for
// any other error.
func Missing(err error) string {
	if e, ok := errors.AsType[*publicError](err); ok {
		return e.missing
	}
	return ""
}

// Reach converts an error of reaching the sandbox for the client. It tells errors of sandbox,
// engine and identity apart.
func (sb *Sandbox) Reach(err error) error {
	if err == nil || errors.As(err, new(*publicError)) ||
		errors.As(err, new(*interrupt.FrozenError)) || errors.Is(err, context.Canceled) {
		return err
	}
	if f := sb.get(); f.Instance.Host.URI != "" {
		if e := reachHost(f, err); e != nil {
			return e
		}
	}
	name := sb.Name()
	public := func(code wire.Code, kind error, hint, format string, args ...any) *publicError {
		e := wire.Errorf(code, format, args...)
		e.Hint = hint
		return &publicError{public: e, kind: kind, err: err}
	}
	switch {
	case errors.Is(err, connect.ErrIdentity):
		return public(wire.CodeUnavailable, ErrIdentity,
			"another server answers in its place; inspect it, or rm it",
			"sandbox %s: identity changed", name)
	case errors.Is(err, connect.ErrLogin):
		return public(wire.CodeUnavailable, ErrBroken, "stop and start it, or rm it",
			"sandbox %s is broken: it rejects the daemon's login", name)
	case errors.Is(err, sandbox.ErrEngine):
		return public(wire.CodeUnavailable, ErrEngine,
			"start the engine; sandboxd doctor shows what is wrong",
			"the engine does not answer; sandbox %s is unchanged", name)
	case errors.Is(err, sandbox.ErrGone):
		return public(wire.CodeLost, ErrBroken, "rm it and create it again",
			"sandbox %s is gone: it was removed outside the daemon", name)
	case errors.Is(err, sandbox.ErrStopped):
		return public(wire.CodeLost, ErrBroken, "start it", "sandbox %s has stopped", name)
	case errors.Is(err, sandbox.ErrUnsupported):
		return public(wire.CodeUnavailable, nil, "", "sandbox %s: %s", name, firstLine(err))
	case errors.Is(err, sandbox.ErrRefused):
		e := public(wire.CodeUnavailable, ErrEngine, "try again; sandboxd doctor checks the engine",
			"sandbox %s: %s", name, firstLine(err))
		e.passing = true
		return e
	}
	e := public(wire.CodeUnavailable, ErrBroken, "sandboxd describe "+name+
		" shows details; rescue, stop and start may help",
		"sandbox %s does not answer", name)
	if errors.Is(err, connect.ErrClosed) {
		e = public(wire.CodeLost, ErrClosed, "try again",
			"sandbox %s: the connection to it was closed", name)
	}
	e.passing = !isVerdict(err)
	return e
}

// bootError converts an error of Boot or Start for the client that asked for the sandbox. It names
// the stage, the image and the engine, but nothing internal to the daemon.
func (sb *Sandbox) bootError(what string, err error) error {
	failed, ok := errors.AsType[*sandbox.BootError](err)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s %s: %w", what, sb.Name(), err)
	}
	public := &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("%s %s: %s", what,
		sb.Name(), firstLine(err))}
	kind := ErrBroken
	if ok {
		public.Message = fmt.Sprintf("%s %s: %s: %s", what, sb.Name(), failed.Stage,
			firstLine(failed.Err))
		public.Hint = failed.Hint
		if failed.Stage == sandbox.StageValidate {
			public.Code = wire.CodeUsage
		}
	}
	if errors.Is(err, sandbox.ErrEngine) {
		kind = ErrEngine
		if public.Hint == "" {
			public.Hint = "start the engine; sandboxd doctor shows what is wrong"
		}
	}
	return &publicError{public: public, kind: kind, err: err}
}

// stored converts an error of the store for the client whose change could not be stored.
func stored(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, store.ErrNameTaken) {
		return err
	}
	e := &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon cannot write its store",
		Hint: "check its free disk space; sandboxd doctor shows details"}
	return &publicError{public: e, err: err}
}

// firstLine returns an error's text, short and as one printable line.
func firstLine(err error) string { return oneLine(err.Error(), 300) }

// oneLine returns at most n characters of untrusted text as one printable line.
func oneLine(s string, n int) string { return text.Line(s, n) }
