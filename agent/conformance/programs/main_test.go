package programs

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sandboxOf is a client of a sandbox in memory.
func sandboxOf(t *testing.T) *agent.Client {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	memory := sandboxtest.New(t, sandboxtest.Options{})
	state, records := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "records")
	check(os.Mkdir(state, 0o700))
	check(os.Mkdir(records, 0o700))
	db, err := store.Open(t.Context(), state)
	check(err)
	t.Cleanup(func() { db.Close() })
	hub, err := gateway.New(gateway.Options{Store: db, Backends: map[string]sandbox.Backend{sandboxtest.Name: memory},
		Records: records, Owner: "alice"})
	check(err)
	var running sync.WaitGroup
	life, end := context.WithCancel(context.Background())
	t.Cleanup(func() {
		end()
		running.Wait()
	})
	running.Go(func() {
		if err := hub.Run(life); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("hub: %v", err)
		}
	})
	check(hub.Ready(t.Context()))
	alice := gateway.Principal{Name: "alice", Kind: wire.Agent}
	_, err = hub.Create(t.Context(), alice, gateway.NewSpec{Name: "box"}, nil)
	check(err)
	client := agent.NewClient("box", func(context.Context) (io.ReadWriteCloser, error) {
		near, far, err := sandboxtest.Pipe()
		if err != nil {
			return nil, err
		}
		running.Go(func() { _ = hub.Stream(context.Background(), alice, "box", far) }) // ends with near
		return near, nil
	}, nil)
	t.Cleanup(func() { client.Close() })
	return client
}
