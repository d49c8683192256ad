package lifecycle_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// failingOnce is a backend of which one dial fails.
type failingOnce struct {
	*sandboxtest.Backend
	fail atomic.Bool
}

func (f *failingOnce) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	if f.fail.CompareAndSwap(true, false) {
		return sandbox.Peer{}, errors.New("connection reset")
	}
	return f.Backend.Dial(ctx, inst)
}

// One connection that cannot be made says nothing of a sandbox whose control connection lives.
func TestFailedDialLeavesSandboxRunning(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	b := &failingOnce{Backend: w.Memory}
	w.Backend = b
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	b.fail.Store(true)
	if c, err := d.Relay.Open(w.Ctx(), alice, "demo", nil); err == nil {
		c.Close()
		t.Fatal("the dial that fails returns no error")
	}
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("after it the sandbox is %s", got)
	}
}

// A sandbox that was taken for broken and answers is running again.
func TestAnswerEndsBroken(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	w.registry.Find("demo").Observed(w.Ctx(), lifecycle.Broken, "does not answer")
	c, err := d.Relay.Open(w.Ctx(), alice, "demo", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("the sandbox answers and is %s", got)
	}
}

// unconnected is a backend whose sandboxes have a policy and no device.
type unconnected struct{ *sandboxtest.Backend }

func (u unconnected) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	network := spec.Network
	spec.Network = sandbox.NetworkNone
	inst, err := u.Backend.Boot(ctx, spec)
	inst.Network, inst.Via = network, spec.Via
	return inst, err
}

func (unconnected) Tunnel(context.Context, sandbox.Instance) (sandbox.Tunnel, error) {
	return sandbox.Tunnel{}, errNoDevice
}

// What an owner changed last holds also when the store is lost and made again from the notes.
func TestLostStoreKeepsWhatWasAskedLast(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Backend = unconnected{w.Memory}
	w.Options.Network = sandbox.NetworkAllowlist
	d := w.Start()
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		Allow: []string{"example.com", "example.org"}}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Disallow(w.Ctx(), alice, "demo", []string{"example.com"}); err != nil {
		t.Fatal(err)
	}
	before, err := d.Get(w.Ctx(), alice, "demo")
	if err != nil || len(before.Allow) != 1 {
		t.Fatalf("allowed: %q, %v", before.Allow, err)
	}
	d.End()
	for _, f := range []string{store.File, store.File + "-wal", store.File + "-shm"} {
		if err := os.Remove(filepath.Join(w.Dir, f)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	d = w.Start()
	if after, err := d.Get(w.Ctx(), alice, "demo"); err != nil || len(after.Allow) != 1 ||
		after.Allow[0] != before.Allow[0] {
		t.Errorf("after the loss it is allowed %q, %v; want %q", after.Allow, err, before.Allow)
	}
}

// Changing a sandbox that was removed meanwhile returns code not_found.
func TestAllowOnRemovedSandbox(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Backend = unconnected{w.Memory}
	w.Options.Network = sandbox.NetworkAllowlist
	d := w.Start()
	w.Create(d, "demo")
	sb := w.registry.Find("demo")
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	_, err := sb.Allow(w.Ctx(), "alice", []string{"example.com"})
	wantCode(t, err, wire.CodeNotFound)
}

// A sandbox that is made while the daemon still looks for what a former one left is not taken for
// one of these.
func TestCreateWhileRecovering(t *testing.T) {
	for range 10 {
		w := newWorld(t, sandboxtest.Options{})
		s, err := store.Open(t.Context(), w.Dir)
		if err != nil {
			t.Fatal(err)
		}
		var o gateway.Options
		o.SetLateBoot(time.Millisecond)
		o.Store, o.Records, o.Owner = s, filepath.Join(w.Dir, "records"), "alice"
		o.Backends = map[string]sandbox.Backend{sandboxtest.Name: w.Backend}
		if err := os.Mkdir(o.Records, 0o700); err != nil {
			t.Fatal(err)
		}
		h, err := gateway.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.Ctx())
		var all sync.WaitGroup
		for _, name := range []string{"a", "b", "c", "d"} {
			all.Go(func() {
				err := lifecycle.ErrClosed
				for errors.Is(err, lifecycle.ErrClosed) { // Run has not begun
					_, err = h.Create(ctx, alice, lifecycle.NewSpec{Name: name}, nil)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		ended := make(chan error, 1)
		go func() { ended <- h.Run(ctx) }()
		all.Wait()
		if err := h.Ready(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		rows, err := s.Sandboxes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) != 4 {
			t.Fatalf("%d sandboxes of 4 are left", len(rows))
		}
		for _, row := range rows {
			if row.State != string(lifecycle.Running) {
				t.Fatalf("%s is %s: %s", row.Name, row.State, row.Error)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
