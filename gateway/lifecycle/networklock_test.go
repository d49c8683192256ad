package lifecycle

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// Who lists a sandbox and who begins to carry its packets do not wait for each other.
func TestListingWhileTheNetworkBegins(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	db, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	reg, err := New(Options{Store: db, Records: dir, Owner: "alice",
		Backends: map[string]sandbox.Backend{sandboxtest.Name: sandboxtest.New(t,
			sandboxtest.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	b := newSandbox(reg, "id", Record{Name: "demo", Owner: "alice", State: Running,
		Instance: sandbox.Instance{Network: sandbox.NetworkFiltered}})
	const rounds = 5_000
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			device, err := os.Open(os.DevNull)
			if err != nil {
				t.Error(err)
				return
			}
			hold, _ := net.Pipe()
			if err := b.network.Packets(t.Context(), device, hold,
				b.network.options(sandbox.NetworkFiltered)); err == nil {
				t.Error("a device that is none was taken")
				return
			}
		}
	})
	wg.Go(func() {
		for range rounds {
			if i := b.Info(); i.Name != "demo" {
				t.Errorf("got %+v", i)
				return
			}
		}
	})
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("they wait for each other")
	}
}
