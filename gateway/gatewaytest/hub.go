// Package gatewaytest runs hubs on sandboxes in memory, which run the real guest, for tests of the
// gateway and of what stands on it. Reach for [Hub] when one hub is enough, and for a [World] when
// a test stops the daemon, starts it again or looks at what it left. It is imported by tests only.
package gatewaytest

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// Patience is how long a test waits for what must happen.
const Patience = 90 * time.Second

// Hub runs a hub until t ends, and returns when it is ready. It fills in what o leaves out: a store
// and a directory of records of the test's own, sandboxes in memory, alice as the owner. It waits
// for the hub's end, and fails the test if that is an error.
func Hub(t testing.TB, o *gateway.Options) *gateway.Hub {
	t.Helper()
	if o.Backends == nil {
		o.Backends = memory(sandboxtest.New(t, sandboxtest.Options{}))
	}
	dir := t.TempDir()
	if o.Store == nil {
		o.Store = openStore(t, filepath.Join(dir, "state"))
		t.Cleanup(func() { closeStore(t, o.Store) })
	}
	if o.Records == "" {
		o.Records = filepath.Join(dir, "records")
		makeDir(t, o.Records)
	}
	hub, stop := run(t, o)
	t.Cleanup(stop)
	ready(t, hub)
	return hub
}

// run runs a hub until stop, which waits for its end.
func run(t testing.TB, o *gateway.Options) (_ *gateway.Hub, stop func()) {
	t.Helper()
	o.Owner = cmp.Or(o.Owner, "alice")
	o.StopGrace = cmp.Or(o.StopGrace, time.Second)
	hub, err := gateway.New(*o)
	if err != nil {
		t.Fatal(err)
	}
	life, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(life) }()
	return hub, sync.OnceFunc(func() {
		end()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(Patience):
			stacks := make([]byte, 4<<20)
			t.Errorf("Run does not return:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	})
}

// ready waits until the hub is ready.
func ready(t testing.TB, hub *gateway.Hub) {
	t.Helper()
	if err := hub.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// memory returns backends with the one in memory, or with what stands in its place.
func memory(be sandbox.Backend) map[string]sandbox.Backend {
	return map[string]sandbox.Backend{sandboxtest.Name: be}
}

func openStore(t testing.TB, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t testing.TB, s *store.Store) {
	if err := s.Close(); err != nil {
		t.Errorf("close store: %v", err)
	}
}

func makeDir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}
