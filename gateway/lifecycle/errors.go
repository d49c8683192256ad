package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Errors that callers branch on, beside the codes of *wire.Error. Each comes wrapped together with
// a *wire.Error that says it to a stranger.
var (
	ErrUnknown  = errors.New("no such sandbox for this principal") // unknown and forbidden alike; code not_found
	ErrBroken   = errors.New("sandbox is broken")                  // it does not answer or cannot start
	ErrEngine   = errors.New("engine does not answer")             // the backend, not the sandbox
	ErrIdentity = errors.New("identity changed")                   // its SSH server presents another key
	ErrClosed   = attach.ErrClosed
)

// shown is an error with what a stranger may see of it. Its own text is for the log.
type shown struct {
	public *wire.Error
	kind   error // one of the sentinels above; may be nil
	err    error // what happened; may be nil

	passing bool // nothing is known to be wrong but a connection: it may be otherwise in a moment
}

func (e *shown) Error() string {
	if e.err != nil {
		return e.public.Message + ": " + e.err.Error()
	}
	return e.public.Message
}

func (e *shown) Unwrap() []error {
	all := []error{e.public}
	for _, err := range []error{e.kind, e.err} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// Passing reports whether the error is no more than a connection to a sandbox that broke or could
// not be made just now.
func (e *shown) Passing() bool { return e.passing }

// Public returns what a stranger may see of err: the *wire.Error within it, or "internal error"
// with an id under which err itself is in the log. nil stays nil.
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
		return &wire.Error{Code: wire.CodeUnavailable, Message: "the time allowed for the call is over"}
	case errors.Is(err, attach.ErrDisconnected):
		return &wire.Error{Code: wire.CodeDenied, Message: "you were sent away"}
	case errors.Is(err, attach.ErrUnshared):
		return &wire.Error{Code: wire.CodeDenied, Message: "the sandbox is no longer shared with you"}
	case errors.Is(err, attach.ErrLeft):
		return &wire.Error{Code: wire.CodeLost, Message: "the party that made the call has left the session"}
	case errors.Is(err, ErrClosed):
		return &wire.Error{Code: wire.CodeLost, Message: ErrClosed.Error(), Hint: "try again when it is back: sessions go on meanwhile"}
	}
	id := rand.Text()[:8]
	reg.log.Error("internal error", "id", id, "err", err)
	return wire.Errorf(wire.CodeInternal, "internal error %s", id)
}

// HintCreate begins the hint that a sandbox which does not exist can be made.
const HintCreate = "create it: "

// NotFound is the one refusal for sandboxes that do not exist and for those of others.
func (reg *Registry) NotFound(name string) error {
	e := wire.Errorf(wire.CodeNotFound, "no sandbox %s for you", name)
	if _, err := wire.ParseLabel("sandbox name", name); err != nil {
		return err // it is no name: nothing is given away
	}
	e.Hint = HintCreate + "ssh sandboxd@gw new " + name
	if reg.options.Lobby != nil {
		e.Hint = HintCreate + reg.options.Lobby("new "+name)
	}
	return &shown{public: e, kind: ErrUnknown}
}

// Reach turns an error of reaching a sandbox into one that tells sandbox, engine and identity
// apart.
func (sb *Sandbox) Reach(err error) error {
	if err == nil || errors.As(err, new(*shown)) || errors.As(err, new(*attach.FrozenError)) || errors.Is(err, context.Canceled) {
		return err
	}
	if f := sb.get(); f.Instance.Host.URI != "" {
		if e := reachHost(f, err); e != nil {
			return e
		}
	}
	name := sb.Name()
	public := func(code wire.Code, kind error, hint, format string, args ...any) *shown {
		e := wire.Errorf(code, format, args...)
		e.Hint = hint
		return &shown{public: e, kind: kind, err: err}
	}
	switch {
	case errors.Is(err, connect.ErrIdentity):
		return public(wire.CodeUnavailable, ErrIdentity, "something else answers in its place; look at it, or rm it",
			"sandbox %s: identity changed", name)
	case errors.Is(err, connect.ErrLogin):
		return public(wire.CodeUnavailable, ErrBroken, "stop and start it, or rm it", "sandbox %s is broken: it refuses the daemon's login", name)
	case errors.Is(err, sandbox.ErrEngine):
		return public(wire.CodeUnavailable, ErrEngine, "start the engine; sandboxd doctor tells what is wrong",
			"the engine does not answer; sandbox %s is not touched", name)
	case errors.Is(err, sandbox.ErrGone):
		return public(wire.CodeLost, ErrBroken, "rm it and create it again", "sandbox %s is gone: it was removed behind the daemon's back", name)
	case errors.Is(err, sandbox.ErrStopped):
		return public(wire.CodeLost, ErrBroken, "start it", "sandbox %s has stopped", name)
	case errors.Is(err, sandbox.ErrUnsupported):
		return public(wire.CodeUnavailable, nil, "", "sandbox %s: %s", name, firstLine(err))
	case errors.Is(err, sandbox.ErrRefused):
		e := public(wire.CodeUnavailable, ErrEngine, "try again; sandboxd doctor tells whether the engine is well", "sandbox %s: %s", name, firstLine(err))
		e.passing = true
		return e
	}
	e := public(wire.CodeUnavailable, ErrBroken, "sandboxd describe "+name+" says more; rescue, stop and start may help",
		"sandbox %s does not answer", name)
	if errors.Is(err, connect.ErrClosed) {
		e = public(wire.CodeLost, ErrClosed, "try again", "sandbox %s: the connection to it was closed", name)
	}
	e.passing = !isVerdict(err)
	return e
}

// bootError turns an error of Boot or Start into one that names the stage. These texts are for
// whoever asked for the sandbox: they speak of images and engines, not of the daemon's insides.
func (sb *Sandbox) bootError(what string, err error) error {
	failed, ok := errors.AsType[*sandbox.BootError](err)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s %s: %w", what, sb.Name(), err)
	}
	public := &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("%s %s: %s", what, sb.Name(), firstLine(err))}
	kind := ErrBroken
	if ok {
		public.Message = fmt.Sprintf("%s %s: %s: %s", what, sb.Name(), failed.Stage, firstLine(failed.Err))
		public.Hint = failed.Hint
		if failed.Stage == "validate" {
			public.Code = wire.CodeUsage
		}
	}
	if errors.Is(err, sandbox.ErrEngine) {
		kind = ErrEngine
		if public.Hint == "" {
			public.Hint = "start the engine; sandboxd doctor tells what is wrong"
		}
	}
	return &shown{public: public, kind: kind, err: err}
}

// stored wraps an error of the store for whoever asked for what could not be written down.
func stored(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, store.ErrNameTaken) {
		return err
	}
	e := &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon cannot write its store", Hint: "is its disk full? sandboxd doctor says more"}
	return &shown{public: e, err: err}
}

// firstLine is an error's text, short and in one line.
func firstLine(err error) string { return oneLine(err.Error(), 300) }

// oneLine is text of others in one line that may be shown and logged, n characters of it.
func oneLine(s string, n int) string { return text.Line(s, n) }
