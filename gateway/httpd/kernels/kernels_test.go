package kernels_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/httpd/kernels"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const image = "sandboxd/python:latest"

var alice = gateway.Principal{Name: "alice", Kind: wire.Agent, Rights: wire.RightDrive}

// newPool returns a Pool on a hub of this machine's engine, and a sandbox with Python. end ends the
// Pool.
func newPool(t *testing.T) (pool *kernels.Pool, hub *gateway.Hub, box lifecycle.Info, end func()) {
	t.Helper()
	if testing.Short() {
		t.Skip("an engine is not for short tests")
	}
	if out, err := exec.Command("docker", "image", "inspect", "--format", "{{.ID}}",
		image).CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" || os.Getenv("SANDBOXD_TEST_REQUIRE") == "1" {
			t.Fatalf("no engine with %s: scripts/setup test\n%s", image, out)
		}
		t.Skipf("no engine with %s: scripts/setup test\n%s", image, out)
	}
	check := func(err error) {
		if t.Helper(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	guest, err := sandboxtest.BuildGuest(dir)
	check(err)
	check(os.Mkdir(filepath.Join(dir, "state"), 0o700))
	check(os.Mkdir(filepath.Join(dir, "records"), 0o700))
	db, err := store.Open(t.Context(), filepath.Join(dir, "state"))
	check(err)
	t.Cleanup(func() { db.Close() })
	backend, err := docker.New(docker.Options{Host: os.Getenv("SANDBOXD_TEST_ENGINE"),
		Dir: filepath.Join(dir, "instances"), GuestDir: filepath.Join(dir, "guests"),
		DaemonID: wire.NewOp(), Guest: func(string) (string, error) { return guest, nil }})
	check(err)
	t.Cleanup(func() { backend.Close() })
	hub, err = gateway.New(gateway.Options{Options: lifecycle.Options{Store: db,
		Backends: map[string]sandbox.Backend{docker.Name: backend},
		Records:  filepath.Join(dir, "records"), Owner: "alice", StopGrace: time.Second,
		Log: slog.New(slog.DiscardHandler)}})
	check(err)
	background(t, func(ctx context.Context) { _ = hub.Run(ctx) })
	check(hub.Ready(t.Context()))
	box, err = hub.Create(t.Context(), alice,
		lifecycle.NewSpec{Name: "box", Image: image, Network: sandbox.NetworkNone}, nil)
	check(err)
	t.Cleanup(func() {
		if _, err := hub.Remove(context.Background(), alice, "box"); err != nil &&
			!errors.Is(err, lifecycle.ErrUnknown) {
			t.Error(err)
		}
	})
	pool = kernels.New(hub, python.Options{})
	return pool, hub, box, background(t, pool.Run)
}

// background runs f until the test ends or end is called.
func background(t *testing.T, f func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	end = func() { cancel(); running.Wait() }
	t.Cleanup(end)
	return end
}

// run runs code in a context of a lease.
func run(t *testing.T, l *kernels.Lease, name, code string) python.Result {
	t.Helper()
	c, err := l.Context(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Execute(t.Context(), python.Call{Code: code})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Concurrent calls of one principal share an interpreter, other principals have another, and a
// broken one gets no new users.
func TestLease(t *testing.T) {
	pool, hub, box, end := newPool(t)
	lease := func(p gateway.Principal) *kernels.Lease {
		l, err := pool.Lease(t.Context(), p, box)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	leases := make([]*kernels.Lease, 8)
	var asking sync.WaitGroup
	for i := range leases {
		asking.Go(func() {
			l, err := pool.Lease(t.Context(), alice, box)
			if err != nil {
				t.Error(err)
				return
			}
			leases[i] = l
		})
	}
	asking.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, l := range leases[1:] {
		if l.Interpreter != leases[0].Interpreter {
			t.Error("two interpreters were opened")
		}
		l.Release()
	}
	first := leases[0]
	if res := run(t, first, "main", "x = 41"); !res.OK {
		t.Errorf("%+v", res)
	}
	other := lease(gateway.Principal{Name: "alice", Kind: wire.Agent})
	if other.Interpreter == first.Interpreter {
		t.Error("one of other rights has the same")
	}
	other.Release()

	// A kernel that dies is replaced for its users.
	if res := run(t, first, "main", "import os; os._exit(1)"); res.Ended != agent.EndedDead {
		t.Errorf("%+v", res)
	}
	if res := run(t, first, "main", "x = 42"); !res.OK || !res.Fresh {
		t.Errorf("%+v", res)
	}

	// The next user of a broken interpreter gets a new one, current users keep theirs. The kernels
	// are the sandbox's.
	first.Broken()
	second := lease(alice)
	if second.Interpreter == first.Interpreter {
		t.Error("what is broken is leased again")
	}
	for _, l := range []*kernels.Lease{first, second} {
		if res := run(t, l, "main", "x"); !res.OK || len(res.Outputs) != 1 ||
			res.Outputs[0].Text("text/plain") != "42" {
			t.Errorf("%+v", res)
		}
	}
	first.Release()
	if _, err := first.Context(t.Context(), "main"); err == nil {
		t.Error("what is broken is open after its last use")
	}

	// A caller who has disconnected opens nothing, and gets the reason.
	gone, cancel := context.WithCancelCause(t.Context())
	why := errors.New("gone")
	cancel(why)
	if l, err := pool.Lease(gone, gateway.Principal{Name: "bob"}, box); err == nil {
		l.Release()
		t.Error("a lease for a caller that has disconnected")
	}

	// After the end of a sandbox, its owner gets a clear error. After the end of the pool, nothing
	// stays open.
	if _, err := hub.Remove(t.Context(), alice, "box"); err != nil {
		t.Fatal(err)
	}
	second.Broken()
	second.Release()
	if l, err := pool.Lease(t.Context(), alice, box); err == nil {
		l.Release()
		t.Error("a lease of a sandbox that has ended")
	} else if e := kernels.Reason(hub, err); e.Code == wire.CodeInternal || e.Message == "" {
		t.Errorf("the reason is %+v", e)
	}
	end()
	if _, err := pool.Lease(t.Context(), alice, box); !errors.Is(
		err, &wire.Error{Code: wire.CodeUnavailable}) {
		t.Errorf("after the end: %v", err)
	}
}
