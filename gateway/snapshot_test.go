package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// copying is a backend whose images are names, each of so many bytes.
type copying struct {
	*sandboxtest.Backend
	weight int64

	mu     *sync.Mutex
	images map[string]bool // guarded by mu
}

func (w *world) copying(weight int64) copying {
	c := copying{Backend: w.memory, weight: weight, mu: new(sync.Mutex), images: make(map[string]bool)}
	w.backend = c
	return c
}

func (c copying) keep(image string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images[image] = true
	return image, nil
}

func (c copying) Snapshot(_ context.Context, _ sandbox.Instance, owner, name, tag string) (string, error) {
	return c.keep(owner + "/" + name + ":" + tag)
}

func (c copying) Fork(_ context.Context, _ sandbox.Instance, id string) (string, error) {
	return c.keep("fork/" + id)
}

func (c copying) Weight(context.Context, sandbox.Instance) (int64, error) { return c.weight, nil }

func (c copying) Kept(_ context.Context, owner string, ids []string) (sum int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for image := range c.images {
		if strings.HasPrefix(image, owner+"/") || slices.Contains(ids, strings.TrimPrefix(image, "fork/")) {
			sum += c.weight
		}
	}
	return sum, nil
}

// What an owner keeps in images is disk of theirs, like that of sandboxes: of snapshots, and of forks.
func TestSnapshotsCount(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	c := w.copying(1 << 30)
	w.options.Quota.Disk = 7 << 30
	d := w.start()
	newOne := func(name string, disk int64) error {
		_, err := d.Create(w.ctx(), alice, NewSpec{Name: name, Limits: sandbox.Limits{Disk: disk}}, nil)
		return err
	}
	if err := newOne("demo", 2<<30); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Snapshot(w.ctx(), alice, "demo", "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Fork(w.ctx(), alice, "demo", "fork", nil); err != nil { // 2 of its own, 1 of its image
		t.Fatal(err)
	}
	wantCode(t, newOne("other", 2<<30), wire.CodeLimitQuota)
	if _, err := d.Snapshot(w.ctx(), alice, "demo", "two"); err != nil {
		t.Fatal(err)
	}
	_, err := d.Snapshot(w.ctx(), alice, "demo", "three")
	wantCode(t, err, wire.CodeLimitQuota)
	if !strings.Contains(err.Error(), "quota.disk") || len(c.images) != 3 {
		t.Errorf("error %v, images %v; want the key named, and none more than three", err, c.images)
	}
	_, err = d.Fork(w.ctx(), alice, "demo", "more", nil)
	wantCode(t, err, wire.CodeLimitQuota)
	if _, err := d.Create(w.ctx(), bob, NewSpec{Name: "his", Limits: sandbox.Limits{Disk: 7 << 30}}, nil); err != nil {
		t.Errorf("what another keeps counts for bob: %v", err)
	}
}

// A file with holes is small until it is copied: more than the sandbox may have is no image.
func TestSnapshotAboveTheLimit(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	c := w.copying(8 << 40)
	d := w.start()
	if _, err := d.Create(w.ctx(), alice, NewSpec{Name: "demo", Limits: sandbox.Limits{Disk: 1 << 30}}, nil); err != nil {
		t.Fatal(err)
	}
	_, err := d.Snapshot(w.ctx(), alice, "demo", "one")
	wantCode(t, err, wire.CodeUnavailable)
	if !strings.Contains(err.Error(), "disk_full") || len(c.images) != 0 {
		t.Errorf("error %v, images %v; want disk_full and no image", err, c.images)
	}
	if _, err := d.Fork(w.ctx(), alice, "demo", "fork", nil); err == nil {
		t.Error("a fork is made of it")
	}
	if list, _ := w.memory.List(w.ctx()); len(list) != 1 {
		t.Errorf("%d instances, want the first alone", len(list))
	}
}

// Forks that wait for their source keep nobody from starting something: perhaps it is the source that is started.
func TestForksWaitWithoutASlot(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.copying(0)
	d := w.start()
	w.create(d, "demo")
	source, err := d.find(alice, "demo")
	if err == nil {
		err = source.lock(w.ctx())
	}
	if err != nil {
		t.Fatal(err)
	}
	waiting, forked := make(chan string, cap(d.boots)), make(chan error, cap(d.boots))
	for i := range cap(d.boots) {
		go func() {
			_, err := d.Fork(w.ctx(), alice, "demo", fmt.Sprintf("fork-%d", i), func(line string) { waiting <- line })
			forked <- err
		}()
	}
	for range cap(d.boots) {
		<-waiting
	}
	w.create(d, "other")
	source.unlock()
	for range cap(d.boots) {
		if err := <-forked; err != nil {
			t.Error(err)
		}
	}
}
