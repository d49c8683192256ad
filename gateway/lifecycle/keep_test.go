package lifecycle_test

import (
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A daemon that ends in order leaves none behind of what it kept for a use, and all of the pool.
func TestKeepPooledEnds(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool = lifecycle.PoolOptions{Size: 1}
	d := w.Start()
	w.ready(d, 1)
	pool := w.members()
	if err := d.KeepPooled(alice, "runs",
		lifecycle.NewSpec{Limits: sandbox.Limits{Memory: 100 << 20}}, 2, time.Hour); err != nil {
		t.Fatal(err)
	}
	w.ready(d, 3)
	d.End()
	left := w.members()
	if len(left) != 1 {
		t.Errorf("%d are left, want that of the pool", len(left))
	}
	for id := range left {
		if !pool[id] {
			t.Errorf("%s is left, which was kept for a use", id)
		}
	}
}

// Sandboxes kept by KeepPooled are for one owner and one spec, for the given time.
func TestKeepPooled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	spec := lifecycle.NewSpec{Limits: sandbox.Limits{Memory: 100 << 20, Swap: 412 << 20},
		TTL: time.Minute, DeleteAfter: time.Minute}
	keep := func(s lifecycle.NewSpec, n int, long time.Duration) {
		t.Helper()
		if err := d.KeepPooled(alice, "runs", s, n, long); err != nil {
			t.Fatal(err)
		}
	}
	keep(spec, 2, time.Hour)
	w.ready(d, 2)
	before := w.members()
	took := func(p gateway.Principal, s lifecycle.NewSpec) bool {
		t.Helper()
		info, err := d.Create(w.Ctx(), p, s, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Discard(w.Ctx(), p, info.Name); err != nil {
			t.Fatal(err)
		}
		return before[info.ID]
	}
	if took(bob, spec) {
		t.Error("bob got a sandbox pooled for alice")
	}
	if took(alice, lifecycle.NewSpec{}) {
		t.Error("it was given for what it was not made for")
	}
	if !took(alice, spec) {
		t.Error("alice was given none of hers")
	}
	w.ready(d, 2)
	if i := d.Pool(); len(i) != 1 || i[0].Use != "runs" || i[0].Owner != "alice" {
		t.Errorf("pool: %+v", i)
	}
	// Another spec replaces the pooled sandboxes of the former.
	before = w.members()
	other := spec
	other.Limits.Memory = 200 << 20
	keep(other, 1, time.Hour)
	w.Eventually("only the new one is pooled", func() bool {
		all := w.members()
		for id := range all {
			if before[id] {
				return false
			}
		}
		return len(all) == 1
	})
	keep(other, 1, 0)
	w.Eventually("none is pooled when nobody needs it", func() bool {
		return len(w.members()) == 0
	})

	wantCode(t, d.KeepPooled(gateway.Principal{Name: "alice", Rights: wire.RightWatch}, "runs",
		spec, 1, time.Hour), wire.CodeDenied)
	wantCode(t, d.KeepPooled(alice, "runs", lifecycle.NewSpec{Setup: []string{"true"}}, 1,
		time.Hour), wire.CodeUsage)
	if err := d.Drain(w.Ctx(), alice); err != nil {
		t.Fatal(err)
	}
	keep(spec, 1, time.Hour)
	if i := d.Pool(); len(i) != 0 {
		t.Errorf("after the pool was drained: %+v", i)
	}
}

// An image that is prepared is found again by whom it was made for, and nothing but the image is
// left.
func TestPrepare(t *testing.T) {
	w, b := newPreparing(t)
	d := w.Start()
	spec := lifecycle.NewSpec{Setup: []string{"true"}}
	for range 2 {
		if image, err := d.Prepare(w.Ctx(), alice, spec, nil); err != nil || image != "set/up" {
			t.Fatalf("%q, %v", image, err)
		}
		if n := len(w.members()); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	}
	if len(b.kept) != 1 {
		t.Errorf("it was made %d times", len(b.kept))
	}
	if _, err := d.Prepare(w.Ctx(), bob, spec, nil); err != nil || len(b.kept) != 2 {
		t.Errorf("bob: %v, %d images", err, len(b.kept))
	}
	spec.Setup = []string{"true", "true"}
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			if _, err := d.Prepare(w.Ctx(), alice, spec, nil); err != nil {
				t.Errorf("one of four: %v", err)
			}
		})
	}
	calls.Wait()
	if len(b.kept) != 3 {
		t.Errorf("four calls at once made %d images", len(b.kept)-2)
	}
	_, err := d.Prepare(w.Ctx(), alice, lifecycle.NewSpec{Setup: []string{"exit 3"}}, nil)
	wantCode(t, err, wire.CodeUnavailable)
	if n := len(w.members()); n != 0 {
		t.Errorf("%d sandboxes are left of what failed", n)
	}
	_, err = d.Prepare(w.Ctx(), alice, lifecycle.NewSpec{}, nil)
	wantCode(t, err, wire.CodeUsage)
}
