package lifecycle_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// copying is a backend whose images are names, each of so many bytes.
type copying struct {
	*sandboxtest.Backend
	sandboxtest.NoImages
	weight int64

	mu     *sync.Mutex
	images map[string]bool // guarded by mu
}

func (w *world) copying(weight int64) copying {
	c := copying{Backend: w.Memory, weight: weight, mu: new(sync.Mutex),
		images: make(map[string]bool)}
	w.Backend = c
	return c
}

func (c copying) keep(image string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.images[image] = true
	return image, nil
}

func (c copying) Snapshot(_ context.Context, _ sandbox.Instance,
	owner, name, tag string) (string, error) {
	return c.keep(owner + "/" + name + ":" + tag)
}

func (c copying) Fork(_ context.Context, _ sandbox.Instance, id string) (string, error) {
	return c.keep("fork/" + id)
}

func (c copying) Destroy(ctx context.Context, inst sandbox.Instance) error {
	c.mu.Lock()
	delete(c.images, "fork/"+inst.ID)
	c.mu.Unlock()
	return c.Backend.Destroy(ctx, inst)
}

func (c copying) Weight(context.Context, sandbox.Instance) (int64, error) { return c.weight, nil }

func (c copying) Kept(_ context.Context, owner string, ids []string) (sum int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for image := range c.images {
		if strings.HasPrefix(image, owner+"/") || slices.Contains(ids, strings.TrimPrefix(image,
			"fork/")) {
			sum += c.weight
		}
	}
	return sum, nil
}

// What an owner keeps in images is disk of theirs, like that of sandboxes: of snapshots, and of
// forks.
func TestSnapshotsCount(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	c := w.copying(1 << 30)
	w.Options.Quota.Disk = 7 << 30
	d := w.Start()
	newOne := func(name string, disk int64) error {
		_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: name,
			Limits: sandbox.Limits{Disk: disk}}, nil)
		return err
	}
	if err := newOne("demo", 2<<30); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Snapshot(w.Ctx(), alice, "demo", "one"); err != nil {
		t.Fatal(err)
	}
	// 2 of its own, 1 of its image
	if _, err := d.Fork(w.Ctx(), alice, "demo", "fork", nil); err != nil {
		t.Fatal(err)
	}
	wantCode(t, newOne("other", 2<<30), wire.CodeLimitQuota)
	if _, err := d.Snapshot(w.Ctx(), alice, "demo", "two"); err != nil {
		t.Fatal(err)
	}
	_, err := d.Snapshot(w.Ctx(), alice, "demo", "three")
	wantCode(t, err, wire.CodeLimitQuota)
	if !strings.Contains(err.Error(), "quota.disk") || len(c.images) != 3 {
		t.Errorf("error %v, images %v; want the key named, and none more than three", err, c.images)
	}
	_, err = d.Fork(w.Ctx(), alice, "demo", "more", nil)
	wantCode(t, err, wire.CodeLimitQuota)
	if _, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "his",
		Limits: sandbox.Limits{Disk: 7 << 30}}, nil); err != nil {
		t.Errorf("what another keeps counts for bob: %v", err)
	}
}

// The image of a fork is there before its sandbox: it goes, too, if the backend rejects that.
func TestForkThatFailsLeavesNoImage(t *testing.T) {
	for _, stage := range []sandbox.Stage{sandbox.StageValidate, sandbox.StageImage,
		sandbox.StageGuest} {
		var fails atomic.Bool
		w := newWorld(t, sandboxtest.Options{Fail: func(s sandbox.Stage) error {
			if s == stage && fails.Load() {
				return sandbox.ErrUnsupported
			}
			return nil
		}})
		c := w.copying(1 << 20)
		d := w.Start()
		if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo"}, nil); err != nil {
			t.Fatal(err)
		}
		fails.Store(true)
		if _, err := d.Fork(w.Ctx(), alice, "demo", "fork", nil); err == nil {
			t.Errorf("%s: the fork did not fail", stage)
		}
		if len(c.images) != 0 {
			t.Errorf("%s: images %v are left", stage, c.images)
		}
	}
}

// A file with holes is small until it is copied: more than the sandbox may have is no image.
func TestSnapshotAboveTheLimit(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	c := w.copying(8 << 40)
	d := w.Start()
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		Limits: sandbox.Limits{Disk: 1 << 30}}, nil); err != nil {
		t.Fatal(err)
	}
	_, err := d.Snapshot(w.Ctx(), alice, "demo", "one")
	wantCode(t, err, wire.CodeUnavailable)
	if !strings.Contains(err.Error(), "disk_full") || len(c.images) != 0 {
		t.Errorf("error %v, images %v; want disk_full and no image", err, c.images)
	}
	if _, err := d.Fork(w.Ctx(), alice, "demo", "fork", nil); err == nil {
		t.Error("a fork is made of it")
	}
	if list, _ := w.Memory.List(w.Ctx()); len(list) != 1 {
		t.Errorf("%d instances, want the first alone", len(list))
	}
}

// Forks that wait for their source keep nobody from starting something: perhaps it is the source
// that is started.
func TestForksWaitWithoutASlot(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.copying(0)
	d := w.Start()
	w.Create(d, "demo")
	source := w.registry.Find("demo")
	if err := source.Lock(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	waiting, forked := make(chan string, w.registry.Boots()), make(chan error, w.registry.Boots())
	for i := range w.registry.Boots() {
		go func() {
			_, err := d.Fork(w.Ctx(), alice, "demo", fmt.Sprintf("fork-%d", i), func(line string) {
				waiting <- line
			})
			forked <- err
		}()
	}
	for range w.registry.Boots() {
		<-waiting
	}
	w.Create(d, "other")
	source.Unlock()
	for range w.registry.Boots() {
		if err := <-forked; err != nil {
			t.Error(err)
		}
	}
}

// slow is a backend that gets the image "slow" until wait is closed.
type slow struct {
	*sandboxtest.Backend
	gets chan string
	wait chan struct{}
}

func (s slow) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	if spec.Image == "slow" {
		s.gets <- spec.ID
		<-s.wait
	}
	return s.Backend.Boot(ctx, spec)
}

// A registry that takes any time for an image keeps nobody from starting something.
func TestImagesTakeNoSlot(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	b := slow{w.Memory, make(chan string), make(chan struct{})}
	w.Backend = b
	d := w.Start()
	made := make(chan error, w.registry.Boots())
	for i := range w.registry.Boots() {
		go func() {
			_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: fmt.Sprintf("slow-%d", i),
				Image: "slow"}, nil)
			made <- err
		}()
		<-b.gets
	}
	w.Create(d, "other")
	close(b.wait)
	for range w.registry.Boots() {
		if err := <-made; err != nil {
			t.Error(err)
		}
	}
}

// freezing is copying that notes in which order it was asked.
type freezing struct {
	copying
	mu    *sync.Mutex
	asked *[]string // guarded by mu
	began chan bool // closed when an image is being made
	ready chan bool // closed when it may be
}

func (f freezing) note(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*f.asked = append(*f.asked, what)
}

func (f freezing) Pause(context.Context, sandbox.Instance) error { f.note("pause"); return nil }

func (f freezing) Resume(context.Context, sandbox.Instance) error {
	f.note("resume")
	return nil
}

func (f freezing) Weight(ctx context.Context, inst sandbox.Instance) (int64, error) {
	f.note("measure")
	return f.copying.Weight(ctx, inst)
}

func (f freezing) Snapshot(ctx context.Context, inst sandbox.Instance,
	owner, name, tag string) (string, error) {
	close(f.began)
	<-f.ready
	f.note("copy")
	if ctx.Err() != nil {
		f.note("in vain")
	}
	return f.copying.Snapshot(ctx, inst, owner, name, tag)
}

// A sandbox is frozen while its files are measured and copied, even if its caller has gone:
// otherwise it would grow in between.
func TestSnapshotOfWhatIsStill(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	f := freezing{copying: w.copying(1 << 20), mu: new(sync.Mutex), asked: new([]string),
		began: make(chan bool), ready: make(chan bool)}
	w.Backend = f
	d := w.Start()
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo",
		Limits: sandbox.Limits{Disk: 1 << 30}}, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Ctx())
	made := make(chan error, 1)
	go func() {
		_, err := d.Snapshot(ctx, alice, "demo", "one")
		made <- err
	}()
	<-f.began
	cancel()
	close(f.ready)
	<-made
	if want := []string{"pause", "measure", "copy", "resume"}; !slices.Equal(*f.asked, want) {
		t.Errorf("asked to %q, want %q", *f.asked, want)
	}
}

// What a daemon froze that was killed while files were copied goes on with the next one.
func TestStillAfterAKill(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	f := freezing{copying: w.copying(1), mu: new(sync.Mutex), asked: new([]string)}
	w.Backend = f
	d := w.Start()
	w.Create(d, "demo")
	b := w.registry.Find("demo")
	if err := b.Transition(w.Ctx(), func(f *lifecycle.Record) {
		f.Reason = lifecycle.Copied
	}); err != nil {
		t.Fatal(err)
	}
	d.End()
	d = w.Start()
	w.Eventually("it goes on", func() bool {
		info, err := d.Get(w.Ctx(), alice, "demo")
		f.mu.Lock()
		defer f.mu.Unlock()
		return err == nil && info.State == lifecycle.Running && info.Reason == "" &&
			slices.Equal(*f.asked, []string{"resume"})
	})
}
