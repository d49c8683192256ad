// Package gatewaytest runs a hub on sandboxes in memory, which run the real guest, for tests of what stands on a hub.
package gatewaytest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// Hub runs a hub until t ends, and returns when it is ready. What o leaves out is filled in there: a store and a directory of records of the
// test's own, sandboxes in memory, alice as the owner. The hub's end is waited for, and is an error of the test if it is one.
func Hub(t testing.TB, o *gateway.Options) *gateway.Hub {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if o.Backends == nil {
		o.Backends = map[string]sandbox.Backend{sandboxtest.Name: sandboxtest.New(t, sandboxtest.Options{})}
	}
	if o.Store == nil {
		db, err := store.Open(t.Context(), filepath.Join(dir, "state"))
		check(err)
		t.Cleanup(func() {
			if err := db.Close(); err != nil {
				t.Errorf("store: %v", err)
			}
		})
		o.Store = db
	}
	if o.Records == "" {
		o.Records = filepath.Join(dir, "records")
		check(os.Mkdir(o.Records, 0o700))
	}
	if o.Owner == "" {
		o.Owner = "alice"
	}
	if o.StopGrace == 0 {
		o.StopGrace = time.Second
	}
	hub, err := gateway.New(*o)
	check(err)
	life, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(life) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Errorf("hub: %v", err)
		}
	})
	check(hub.Ready(t.Context()))
	return hub
}
