package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Errors of a host name it and say what to do.
func TestReachHost(t *testing.T) {
	f := Record{Name: "box"}
	for _, tt := range []struct {
		err  error
		kind error
		hint string
	}{
		{connect.ErrIdentity, ErrIdentity, "rm the sandbox and add it again"},
		{connect.ErrLogin, ErrBroken, "sandboxd start box"},
		{sandbox.ErrUnsupported, ErrBroken, "hosts do not support it"},
		{fmt.Errorf("stream: %w", io.ErrUnexpectedEOF), ErrBroken, "the log of its SSH server"},
		{errors.New("no route"), ErrBroken, "the daemon retries until it answers"},
	} {
		err := reachHost(f, tt.err)
		var public *wire.Error
		if !errors.Is(err, tt.kind) || !errors.As(err, &public) || !strings.Contains(public.Hint,
			tt.hint) || !strings.Contains(public.Message, "box") {
			t.Errorf("%v: got %v, want %v and a hint with %q", tt.err, err, tt.kind, tt.hint)
		}
	}
	refused := fmt.Errorf("connect: %w", syscall.ECONNREFUSED)
	if err := reachHost(f, refused); passing(err) {
		t.Error("a refused connection is waited for")
	}
	if !passing(reachHost(f, errors.New("no route"))) {
		t.Error("a connection that breaks is not tried again")
	}
	var going *wire.Error
	if err := reachHost(Record{Name: "box", State: Deleting}, refused); !errors.As(err, &going) ||
		!strings.Contains(going.Hint, "the removal continues") {
		t.Errorf("while it is removed: got %v, want that it goes on", err)
	}
	said := &wire.Error{Code: wire.CodeUnavailable, Message: "rescue: not here"}
	if err := reachHost(f, said); !errors.Is(err, said) || !strings.Contains(err.Error(),
		"rescue: not here") {
		t.Errorf("what is said already: got %v", err)
	}
	if err := reachHost(f, connect.ErrClosed); err != nil {
		t.Errorf("a connection closed here: got %v, want it left to others", err)
	}
}

// passing reports whether an error is no more than a connection that broke.
func passing(err error) bool {
	e, ok := errors.AsType[*publicError](err)
	return ok && e.Passing()
}
