package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"runtime"
	"strings"
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

// ready waits until so many members of the pool can be had.
func (w *world) ready(d *daemon, want int) {
	w.T.Helper()
	w.Eventually("the pool is filled", func() bool {
		n := 0
		for _, i := range d.Pool() {
			n += i.Ready
		}
		return n == want
	})
}

// members are the instances that the backend has, by ID.
func (w *world) members() map[string]bool {
	w.T.Helper()
	list, err := w.Memory.List(w.Ctx())
	if err != nil {
		w.T.Fatal(err)
	}
	all := make(map[string]bool)
	for _, inst := range list {
		all[inst.ID] = true
	}
	return all
}

// boots counts what a backend boots.
type boots struct {
	*sandboxtest.Backend
	n atomic.Int64
}

func (b *boots) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	b.n.Add(1)
	return b.Backend.Boot(ctx, spec)
}

// A spec with only a name and the image gets a pooled sandbox; every other spec is booted.
func TestPoolServesWhatIsAlike(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool = lifecycle.PoolOptions{Size: 1, Images: []string{sandbox.DefaultImage,
		"other:latest"}}
	w.Options.Image = sandbox.DefaultImage
	d := w.Start()
	for _, tt := range []struct {
		name string
		spec lifecycle.NewSpec
		p    gateway.Principal
		warm bool
	}{
		{"nothing", lifecycle.NewSpec{}, alice, true},
		{"a name", lifecycle.NewSpec{Name: "named"}, alice, true},
		{"another owner", lifecycle.NewSpec{Name: "of-bob"}, bob, true},
		{"the image by name", lifecycle.NewSpec{Image: sandbox.DefaultImage}, alice, true},
		{"another image of the pool", lifecycle.NewSpec{Image: "other:latest"}, alice, true},
		{"what the default is", lifecycle.NewSpec{Network: sandbox.NetworkNone}, alice, true},
		{"what is said about it", lifecycle.NewSpec{About: "for tests"}, alice, true},
		{"an image that is not in the pool", lifecycle.NewSpec{Image: "third:latest"}, alice,
			false},
		{"a limit", lifecycle.NewSpec{Limits: sandbox.Limits{Memory: 1 << 30}}, alice, false},
		{"a variable", lifecycle.NewSpec{Env: []string{"A=b"}}, alice, false},
		{"a user", lifecycle.NewSpec{User: "root"}, alice, false},
		{"sudo", lifecycle.NewSpec{Sudo: true}, alice, false},
		{"no entrypoint", lifecycle.NewSpec{Entrypoint: sandbox.EntrypointOff}, alice, false},
		{"trust", lifecycle.NewSpec{Trust: sandbox.TrustImage}, alice, false},
		{"a directory", lifecycle.NewSpec{Workdir: "/tmp"}, alice, false},
		{"a time", lifecycle.NewSpec{TTL: time.Hour}, alice, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w.ready(d, 2)
			before := w.members()
			info, err := d.Create(w.Ctx(), tt.p, tt.spec, nil)
			if err != nil {
				t.Fatal(err)
			}
			if before[info.ID] != tt.warm {
				t.Errorf("it stood ready: %v, want %v", before[info.ID], tt.warm)
			}
			if info.State != lifecycle.Running || info.Owner != tt.p.Name || tt.spec.Name != "" &&
				info.Name != tt.spec.Name || time.Since(info.Created) > time.Minute {
				t.Errorf("info = %+v", info)
			}
			if err := d.Discard(w.Ctx(), tt.p, info.Name); err != nil {
				t.Fatal(err)
			}
			if w.members()[info.ID] {
				t.Error("it is still there after rm")
			}
		})
	}
}

// Concurrent claims never get the same sandbox; without a pooled one left, a sandbox is booted.
func TestPoolClaimants(t *testing.T) {
	const claimants, size = 12, 4
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = size
	w.Options.At(func(string) { runtime.Gosched() })
	d := w.Start()
	w.ready(d, size)
	before := w.members()
	var wg sync.WaitGroup
	infos, errs := make([]lifecycle.Info, claimants), make([]error, claimants)
	for i := range claimants {
		wg.Go(func() { infos[i], errs[i] = d.Create(w.Ctx(), alice, lifecycle.NewSpec{}, nil) })
	}
	wg.Wait()
	seen, warm := make(map[string]bool), 0
	for i, info := range infos {
		if errs[i] != nil {
			t.Errorf("claimant %d: %v", i, errs[i])
		}
		if seen[info.ID] {
			t.Errorf("%s was given twice", info.ID)
		}
		seen[info.ID] = true
		if before[info.ID] {
			warm++
		}
	}
	if warm != size {
		t.Errorf("%d of those that stood ready were given, want %d", warm, size)
	}
	w.ready(d, size)
}

// What is in the pool is nobody's: it is in no list, counts towards no quota, and cannot be reached
// by any name.
func TestPoolIsNobodys(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 3
	w.Options.Quota.Sandboxes = 1
	d := w.Start()
	w.ready(d, 3)
	for _, p := range []gateway.Principal{alice, bob, {Name: lifecycle.Nobody}} {
		infos, err := d.List(w.Ctx(), p)
		if p.Name != lifecycle.Nobody && (err != nil || len(infos) != 0) {
			t.Errorf("List of %s = %v, %v", p.Name, infos, err)
		}
		needs, err := d.Sessions.Attention(w.Ctx(), p, "")
		if err != nil || len(needs) != 0 {
			t.Errorf("Needs of %s = %v, %v", p.Name, needs, err)
		}
		for id := range w.members() {
			for _, name := range []string{id, lifecycle.Nobody + id, "lost-" + id} {
				if _, err := d.Get(w.Ctx(), p, name); !errors.Is(err, lifecycle.ErrUnknown) &&
					!errors.Is(err, &wire.Error{Code: wire.CodeUsage}) {
					t.Errorf("Get %s as %s: %v", name, p.Name, err)
				}
			}
		}
	}
	w.Create(d, "demo")
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "second"}, nil)
	wantCode(t, err, wire.CodeLimitSandboxes)
	w.ready(d, 3)
}

// A restart finds the pool again; a daemon that is configured otherwise removes what it has no use
// for.
func TestPoolAfterARestart(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	backend := &boots{Backend: w.Memory}
	w.Backend = backend
	w.Options.Pool.Size = 3
	d := w.Start()
	w.ready(d, 3)
	d.End()
	booted := backend.n.Load()
	d = w.Start()
	w.ready(d, 3)
	if n := backend.n.Load(); n != booted {
		t.Errorf("%d were booted anew", n-booted)
	}
	d.End()

	w.Options.Pool.Size = 1
	d = w.Start()
	w.Eventually("the rest is removed", func() bool { return len(w.members()) == 1 })
	w.ready(d, 1)
	d.End()

	w.Options.Limits.PIDs = 100
	old := w.members()
	d = w.Start()
	w.Eventually("it is made anew", func() bool {
		now := w.members()
		for id := range now {
			if old[id] {
				return false
			}
		}
		return len(now) == 1
	})
	w.ready(d, 1)
	d.End()

	w.Options.Pool.Size = 0
	d = w.Start()
	w.Eventually("all of it is removed", func() bool {
		rows, err := d.Store.Sandboxes(w.Ctx())
		return err == nil && len(rows) == 0
	})
	w.nothingLeft(d)
	if got := d.Pool(); len(got) != 0 {
		t.Errorf("Pool = %v", got)
	}
}

// A daemon that is killed while it boots one leaves a row and perhaps an instance: both go, and the
// pool is filled.
func TestFillIsCutShort(t *testing.T) {
	t.Parallel()
	for _, made := range []bool{false, true} {
		w := newWorld(t, sandboxtest.Options{})
		d := w.Start()
		d.End()
		f := lifecycle.Record{Owner: lifecycle.Nobody, State: lifecycle.Creating,
			Instance: sandbox.Instance{Backend: sandboxtest.Name}}.AsPooled("half")
		w.withStore(func(s *store.Store) {
			row, err := f.Row("half")
			if err == nil {
				err = s.Add(w.Ctx(), row)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		if made {
			if _, err := w.Memory.Boot(w.Ctx(), f.Spec); err != nil {
				t.Fatal(err)
			}
		}
		w.Options.Pool.Size = 1
		d = w.Start()
		w.ready(d, 1)
		w.Eventually("what was half made is removed", func() bool {
			rows, err := d.Store.Sandboxes(w.Ctx())
			return err == nil && len(rows) == 1 && rows[0].ID != "half" && !w.members()["half"]
		})
		if infos, err := d.List(w.Ctx(), alice); err != nil || len(infos) != 0 {
			t.Errorf("List = %v, %v", infos, err)
		}
	}
}

// A member that ends, vanishes or is frozen is replaced, and is given to nobody.
func TestPoolReplacesWhatFails(t *testing.T) {
	for name, break_ := range map[string]func(w *world, inst sandbox.Instance) error{
		"stopped": func(w *world, inst sandbox.Instance) error {
			return w.Memory.Stop(w.Ctx(), inst, time.Second)
		},
		"gone": func(w *world, inst sandbox.Instance) error {
			return w.Memory.Destroy(w.Ctx(), inst)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{})
			w.Options.Pool.Size = 1
			d := w.Start()
			w.ready(d, 1)
			list, err := w.Memory.List(w.Ctx())
			if err != nil || len(list) != 1 {
				t.Fatal(list, err)
			}
			if err := break_(w, list[0]); err != nil {
				t.Fatal(err)
			}
			w.Eventually("it is replaced", func() bool {
				now := w.members()
				return len(now) == 1 && !now[list[0].ID] && d.Pool()[0].Ready == 1
			})
			if info := w.Create(d, "demo"); info.ID == list[0].ID {
				t.Error("the broken one was given")
			}
		})
	}
}

// What was taken is not replaced at once: who took it uses it first.
func TestPoolIsRefilledAWhileLater(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 1
	d := w.Start()
	w.ready(d, 1)
	began := time.Now()
	w.Create(d, "demo")
	w.ready(d, 1)
	if took := time.Since(began); took < 250*time.Millisecond {
		t.Errorf("it is replaced %v after the claim", took)
	}
}

// A guest that has a name already is given to nobody: it was used before.
func TestPoolNeverGivesWhatHasAName(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 1
	d := w.Start()
	w.ready(d, 1)
	list, err := w.Memory.List(w.Ctx())
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	inst := list[0]
	inst.Backend = sandboxtest.Name
	name := wire.Control{Do: "name", Name: "other"}
	if _, err := w.Control(inst).Do(w.Ctx(), name); err != nil {
		t.Fatal(err)
	}
	if info := w.Create(d, "demo"); info.ID == inst.ID {
		t.Error("it was given")
	}
	w.Eventually("it is removed", func() bool { return !w.members()[inst.ID] })
}

// An image that is built anew replaces what was made from the old one.
func TestPoolFollowsItsImage(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 2
	d := w.Start()
	w.ready(d, 2)
	old := w.members()
	w.registry.Renew(w.Ctx())
	if now := w.members(); len(now) != 2 {
		t.Fatalf("members = %v", now)
	}
	w.Memory.Rebuild()
	w.registry.Renew(w.Ctx())
	w.ready(d, 2)
	w.Eventually("the old ones are gone", func() bool {
		for id := range w.members() {
			if old[id] {
				return false
			}
		}
		return true
	})
}

// revising is a backend that makes its instances with something that changes.
type revising struct {
	*sandboxtest.Backend
	revision atomic.Value
}

func (b *revising) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	inst, err := b.Backend.Boot(ctx, spec)
	inst.Revision = b.revision.Load().(string)
	return inst, err
}

func (b *revising) Revision(context.Context, sandbox.Spec) (string, error) {
	return b.revision.Load().(string), nil
}

// What an earlier daemon booted with another guest, or an engine by another runtime, is nobody's to
// have: it is replaced, before a new daemon gives anything away and while it runs.
func TestPoolFollowsItsBackend(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	b := &revising{Backend: w.Memory}
	b.revision.Store("one")
	w.Backend = b
	w.Options.Pool.Size = 1
	d := w.Start()
	w.ready(d, 1)
	first := w.members()
	d.End()
	d = w.Start()
	w.ready(d, 1)
	if now := w.members(); !maps.Equal(now, first) {
		t.Fatalf("members = %v, want those of before, %v", now, first)
	}
	d.End()
	b.revision.Store("two")
	d = w.Start()
	demo := w.Create(d, "demo").ID
	if first[demo] {
		t.Error("what an earlier daemon made otherwise was given away")
	}
	w.ready(d, 1)
	second := w.members()
	b.revision.Store("three")
	w.registry.Renew(w.Ctx())
	w.Eventually("it is replaced", func() bool {
		for id := range w.members() {
			if second[id] && id != demo {
				return false
			}
		}
		return true
	})
	w.ready(d, 1)
}

// A pool that cannot be filled says so, now and then, and keeps nobody from making a sandbox.
func TestPoolThatCannotBeFilled(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool = lifecycle.PoolOptions{Size: 1, Images: []string{sandboxtest.NoImage,
		"other:latest"}}
	d := w.Start()
	w.ready(d, 1) // the other one
	w.Eventually("it says why", func() bool {
		return strings.Contains(w.Log.String(), "pool: boot failed") && d.Pool()[0].Trouble != ""
	})
	w.Create(d, "demo")
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Image: sandboxtest.NoImage},
		nil); err == nil {
		t.Error("an image that is not there made a sandbox")
	}
	if n := bytes.Count([]byte(w.Log.String()), []byte("pool: boot failed")); n > 10 {
		t.Errorf("it said so %d times", n)
	}
	w.Eventually("the backend has no more than the pool and demo", func() bool {
		return len(w.members()) == 2
	})
}

// An engine that is away when the daemon starts fills the pool when it is back.
func TestPoolWaitsForTheEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	engine := &away{Backend: w.Memory}
	engine.down.Store(true)
	w.Backend = engine
	w.Options.Pool.Size = 1
	d := w.Start()
	w.Eventually("it says why", func() bool { return d.Pool()[0].Trouble != "" })
	engine.down.Store(false)
	w.ready(d, 1)
	engine.down.Store(true)
	w.Create(d, "demo") // no engine is asked
	w.Eventually("it says why again", func() bool { return d.Pool()[0].Trouble != "" })
	engine.down.Store(false)
	w.ready(d, 1)
	if got := d.Pool()[0]; got.Trouble != "" || got.Image != sandbox.DefaultImage {
		t.Errorf("Pool = %+v", got)
	}
}

// Drained, there is no pool until the daemon is started again; it is its own user's to say.
func TestPoolIsDrained(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 3
	d := w.Start()
	if err := d.Drain(w.Ctx(), bob); !errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
		t.Errorf("Drain as bob = %v", err)
	}
	// And others are under way.
	w.Eventually("one is pooled", func() bool { return d.Pool()[0].Ready > 0 })
	w.Create(d, "demo")
	if err := d.Drain(w.Ctx(), alice); err != nil {
		t.Fatal(err)
	}
	if n := len(w.members()); n != 1 {
		t.Errorf("the backend has %d, want demo alone", n)
	}
	if got := d.Pool()[0]; got.Ready != 0 || got.Size != 0 {
		t.Errorf("Pool = %+v", got)
	}
	info := w.Create(d, "other")
	if err := d.Discard(w.Ctx(), alice, info.Name); err != nil {
		t.Fatal(err)
	}
	d.End()
	d = w.Start()
	w.ready(d, 3)
}

// A fork has its source's files, and never uses a pooled sandbox.
func TestForkIsNotPooled(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.copying(0)
	w.Options.Pool.Size = 1
	d := w.Start()
	w.ready(d, 1)
	w.Create(d, "demo")
	w.ready(d, 1)
	before := w.members()
	info, err := d.Fork(w.Ctx(), alice, "demo", "twin", nil)
	if err != nil {
		t.Fatal(err)
	}
	if before[info.ID] {
		t.Error("the fork stood ready")
	}
}

// Draining ends well also while a daemon that was killed may have asked the engine for one more,
// which is looked for a while.
func TestPoolIsDrainedAfterAKill(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.SetLateBoot(time.Hour)
	d := w.Start()
	f, err := w.registry.Plan(lifecycle.Nobody, lifecycle.NewSpec{})
	if err != nil {
		t.Fatal(err)
	}
	row, err := f.AsPooled("cut2short").Row("cut2short")
	if err == nil {
		err = d.Store.Add(w.Ctx(), row)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.End()
	d = w.Start()
	if err := d.Drain(w.Ctx(), gateway.Principal{Name: "alice"}); err != nil {
		t.Errorf("Drain = %v", err)
	}
}
