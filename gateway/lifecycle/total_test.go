package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// wantTotal wants err to be limit_sandboxes, naming the key.
func wantTotal(t *testing.T, err error, key string) {
	t.Helper()
	wantCode(t, err, wire.CodeLimitSandboxes)
	e, _ := errors.AsType[*wire.Error](err)
	if e == nil || !strings.Contains(e.Message, "("+key+")") || !strings.Contains(e.Hint,
		"raise "+key) {
		t.Errorf("got %+v, want %s named, and how it is raised", e, key)
	}
}

// All owners together have so many sandboxes, and so many that run; what is stopped gives its place
// to another.
func TestTotal(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Total = admission.Total{Sandboxes: 3, Running: 2}
	d := w.Start()
	newOne := func(p gateway.Principal, name string) error {
		_, err := d.Create(w.Ctx(), p, lifecycle.NewSpec{Name: name}, nil)
		return err
	}
	w.Create(d, "one")
	if err := newOne(bob, "two"); err != nil {
		t.Fatal(err)
	}
	wantTotal(t, newOne(alice, "three"), "total.running")
	if _, err := d.Get(w.Ctx(), alice, "three"); err == nil {
		t.Error("what was refused is there")
	}
	if err := d.Stop(w.Ctx(), alice, "one"); err != nil {
		t.Fatal(err)
	}
	if err := newOne(alice, "three"); err != nil {
		t.Fatalf("in the place of one that is stopped: %v", err)
	}
	_, err := d.Start(w.Ctx(), alice, "one", nil)
	wantTotal(t, err, "total.running")
	if err := d.Stop(w.Ctx(), bob, "two"); err != nil {
		t.Fatal(err)
	}
	wantTotal(t, newOne(bob, "four"), "total.sandboxes")
	if _, err := d.Start(w.Ctx(), alice, "one", nil); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	d.End()

	// What is there stays, however little there may be from now on.
	w.Options.Total = admission.Total{Sandboxes: 1, Running: 1}
	d = w.Start()
	for name, want := range map[string]lifecycle.State{"one": lifecycle.Running,
		"three": lifecycle.Running} {
		if got := w.State(d, name); got != want {
			t.Errorf("%s is %s after a restart with less room, want %s", name, got, want)
		}
	}
	if err := d.Discard(w.Ctx(), alice, "three"); err != nil {
		t.Fatal(err)
	}
	wantTotal(t, newOne(alice, "five"), "total.sandboxes")
}

// Pooled sandboxes use what is left of a limit, say so, and make room for a sandbox that an owner
// asks for: that call is never rejected because of them.
func TestPoolMakesRoom(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Pool.Size = 3
	w.Options.Total = admission.Total{Sandboxes: 4, Running: 3}
	d := w.Start()
	w.ready(d, 3)
	for i, name := range []string{"one", "two", "three"} {
		if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: name, Env: []string{"A=b"}},
			nil); err != nil {
			t.Fatal(err)
		}
		w.Eventually("there are no more than there may be", func() bool {
			return len(w.members()) == 3
		})
		w.ready(d, 2-i)
		w.Eventually("the pool says why", func() bool {
			return strings.Contains(d.Pool()[0].Trouble, "(total.running)")
		})
	}
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "four"}, nil)
	wantTotal(t, err, "total.running")
	if err := d.Stop(w.Ctx(), alice, "one"); err != nil {
		t.Fatal(err)
	}
	w.ready(d, 1)
	if err := d.Discard(w.Ctx(), alice, "two"); err != nil {
		t.Fatal(err)
	}
	w.ready(d, 2)
	if _, err := d.Start(w.Ctx(), alice, "one", nil); err != nil {
		t.Errorf("start with the pool in the way: %v", err)
	}
	w.ready(d, 1)
	w.Eventually("one, three and a pooled one are left", func() bool {
		return len(w.members()) == 3
	})
}

// An owner sees the usage and limits of the own sandboxes; only the admin sees those of all owners.
func TestAllowances(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Quota = admission.Quota{CPUs: 4, Disk: 7 << 30, Connections: 30}
	w.Options.Connections = 100
	w.Options.Total = admission.Total{Sandboxes: 9, Running: 8}
	w.copying(1 << 30)
	d := w.Start()
	limits := sandbox.Limits{Memory: 1 << 30, CPUs: 1.5, Disk: 2 << 30}
	for _, name := range []string{"one", "two"} {
		if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: name, Limits: limits},
			nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Snapshot(w.Ctx(), alice, "one", "kept"); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(w.Ctx(), alice, "one"); err != nil {
		t.Fatal(err)
	}
	said := func(p gateway.Principal) (all []string) {
		t.Helper()
		as, err := d.Allowances(w.Ctx(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range as {
			have, most := a.Text()
			all = append(all, a.Of+" "+a.What+" "+have+" of "+most+" "+a.Key)
		}
		return all
	}
	want := []string{"alice sandboxes 2 of 64 max_sandboxes",
		"alice sessions 0 of - quota.sessions", "alice connections 0 of 30 quota.connections",
		"alice memory 1 GiB of - quota.memory",
		"alice cpus 1.5 of 4 quota.cpus", "alice disk 5 GiB of 7 GiB quota.disk",
		"all sandboxes 2 of 9 total.sandboxes", "all running 1 of 8 total.running",
		"all connections 0 of 100 connections"}
	if diff := cmp.Diff(want, said(alice)); diff != "" {
		t.Errorf("alice (-want +got):\n%s", diff)
	}
	want = []string{"bob sandboxes 0 of 64 max_sandboxes", "bob sessions 0 of - quota.sessions",
		"bob connections 0 of 30 quota.connections", "bob memory 0 B of - quota.memory",
		"bob cpus 0 of 4 quota.cpus", "bob disk 0 B of 7 GiB quota.disk"}
	if diff := cmp.Diff(want, said(bob)); diff != "" {
		t.Errorf("bob (-want +got):\n%s", diff)
	}
}

// imageCounter is a backend that counts what p prepares, too.
type imageCounter struct {
	copying
	p *preparing
}

func (b *imageCounter) Prepared(ctx context.Context, spec sandbox.Spec,
	l sandbox.Layer) (string, error) {
	return b.p.Prepared(ctx, spec, l)
}

func (b *imageCounter) Prepare(ctx context.Context, inst sandbox.Instance,
	owner string, l sandbox.Layer) (string, error) {
	return b.p.Prepare(ctx, inst, owner, l)
}

func (b *imageCounter) Forget(ctx context.Context, owner string,
	keep func(string) bool) (int, error) {
	return b.p.Forget(ctx, owner, keep)
}

func (b *imageCounter) Kept(ctx context.Context, owner string, ids []string) (int64, error) {
	n, err := b.copying.Kept(ctx, owner, ids)
	return n + int64(len(b.p.kept))*b.weight, err
}

// The image of a setup counts as disk of its owner. It is removed before the quota blocks a call,
// because it can be rebuilt. One without room is not saved.
func TestSetUpsCount(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	p := &preparing{Backend: w.Memory, kept: make(map[string]bool)}
	b := &imageCounter{copying: w.copying(1 << 30), p: p}
	w.Backend = b
	w.Options.Quota.Disk = 6 << 30
	d := w.Start()
	newOne := func(name string, disk int64, setup ...string) (said []string, err error) {
		_, err = d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: name,
			Limits: sandbox.Limits{Disk: disk}, Setup: setup}, func(l string) {
			said = append(said, l)
		})
		return said, err
	}
	if _, err := newOne("one", 2<<30, "true"); err != nil {
		t.Fatal(err)
	}
	if len(p.kept) != 1 {
		t.Fatalf("kept %v, want the setup's image", p.kept)
	}
	if said, err := newOne("two", 2<<30, "true"); err != nil || len(p.kept) != 1 ||
		strings.Contains(strings.Join(said, "\n"), "setup:") {
		t.Fatalf("kept %v, %v, said %q; want it found again", p.kept, err, said)
	}
	// 4 GiB of sandboxes and one of what is kept: two more fit without it.
	if _, err := newOne("three", 2<<30); err != nil || len(p.kept) != 0 {
		t.Fatalf("kept %v, %v; want it gone to make room", p.kept, err)
	}
	if err := d.Discard(w.Ctx(), alice, "three"); err != nil {
		t.Fatal(err)
	}
	said, err := newOne("four", 2<<30, "false || true")
	if err != nil || len(p.kept) != 0 {
		t.Fatalf("kept %v, %v; want the sandbox, and nothing kept", p.kept, err)
	}
	if last := said[len(said)-1]; !strings.Contains(last, "the next sandbox repeats the setup: ") ||
		!strings.Contains(last, "quota.disk") {
		t.Errorf("said %q", said)
	}
	_, err = newOne("five", 2<<30)
	wantQuota(t, err, "quota.disk", "--disk")
}
