package lifecycle_test

import (
	"errors"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The daemon logs in to hosts with the keys of its own user: nobody else says where.
func TestWhoAddsHosts(t *testing.T) {
	d := newWorld(t, sandboxtest.Options{}).Start()
	spec := lifecycle.NewSpec{Name: "box", Host: sandbox.Host{URI: "ssh://box.invalid"}}
	watcher := alice
	watcher.Rights = wire.RightWatch
	for _, p := range []gateway.Principal{bob, watcher} {
		if _, err := d.Create(t.Context(), p, spec, nil); !errors.Is(err,
			&wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("%s with rights %q: got %v, want it denied", p.Name, p.Rights, err)
		}
	}
	// The owner gets as far as the backend, which this daemon does not have.
	if _, err := d.Create(t.Context(), alice, spec, nil); !errors.Is(err, lifecycle.ErrEngine) {
		t.Errorf("the owner: got %v, want %v", err, lifecycle.ErrEngine)
	}
	spec.Backend = sandboxtest.Name
	if _, err := d.Create(t.Context(), alice, spec, nil); !errors.Is(err,
		&wire.Error{Code: wire.CodeUsage}) {
		t.Errorf("with another backend: got %v, want a mistake of usage", err)
	}
}
