package gateway

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// Who lists a sandbox and who begins to carry its packets do not wait for each other.
func TestListingWhileTheNetworkBegins(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	b := newBox(d.Hub, "id", facts{name: "demo", owner: "alice", state: Running, inst: sandbox.Instance{Network: sandbox.NetworkFiltered}})
	const rounds = 5_000
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			device, err := os.Open(os.DevNull)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := begin(b, sandbox.NetworkFiltered, func(o egress.Options) (*egress.Stack, error) { return egress.Start(device, o) }); err == nil {
				t.Error("a device that is none was taken")
				return
			}
		}
	})
	wg.Go(func() {
		for range rounds {
			if i := b.info(); i.Name != "demo" {
				t.Errorf("got %+v", i)
				return
			}
		}
	})
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("they wait for each other")
	}
}
