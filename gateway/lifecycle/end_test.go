package lifecycle_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An end comes while the sandbox is in use, and while the daemon does not run.
func TestEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	labels := map[string]string{"job": "7"}
	w.createFor(d, lifecycle.NewSpec{End: lifecycle.End{At: time.Now().Add(time.Hour)},
		Labels: labels})
	c, err := d.Relay.Open(w.Ctx(), alice, "demo", nil) // use makes no difference
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := d.SetEnd(w.Ctx(), bob, "demo", lifecycle.End{}); d.Public(err) == nil ||
		d.Public(err).Code != wire.CodeNotFound {
		t.Errorf("another owner's: %v", err)
	}
	if _, err := d.SetEnd(w.Ctx(), alice, "demo",
		lifecycle.End{At: time.Now().Add(-time.Minute)}); d.Public(err) == nil ||
		d.Public(err).Code != wire.CodeUsage {
		t.Errorf("in the past: %v", err)
	}
	at := time.Now().Add(short).Truncate(time.Millisecond)
	info, err := d.SetEnd(w.Ctx(), alice, "demo", lifecycle.End{At: at})
	if err != nil || info.End == nil || !info.End.At.Equal(at) {
		t.Fatalf("%+v, %v", info, err)
	}
	d.End()
	d = w.Start()
	if list, _ := d.List(w.Ctx(), alice); len(list) == 1 && (!list[0].End.At.Equal(at) ||
		!cmp.Equal(list[0].Labels, labels)) {
		t.Errorf("after a restart: %+v", list[0])
	}
	w.Eventually("it is removed", func() bool {
		list, _ := d.List(w.Ctx(), alice)
		return len(list) == 0
	})
	if time.Now().Before(at) {
		t.Error("it was removed before its end")
	}
	w.nothingLeft(d)
}

// An end that was put off removes nothing.
func TestEndPutOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.createFor(d, lifecycle.NewSpec{End: lifecycle.End{At: time.Now().Add(time.Hour)}})
	b := w.registry.Find("demo")
	if _, err := d.SetEnd(w.Ctx(), alice, "demo",
		lifecycle.End{At: time.Now().Add(short)}); err != nil {
		t.Fatal(err)
	}
	if err := b.Lock(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	w.Eventually("its end has come", b.Expiring)
	if err := b.Transition(w.Ctx(), func(f *lifecycle.Record) {
		f.End.At = time.Now().Add(time.Hour)
	}); err != nil {
		t.Error(err)
	}
	b.Unlock()
	w.Eventually("it had its turn", func() bool { return !b.Expiring() })
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("it is %s", got)
	}
	// What this backend cannot do is refused, rather than done otherwise.
	_, err := d.SetEnd(w.Ctx(), alice, "demo", lifecycle.End{At: time.Now().Add(short),
		Pause: true})
	if e := d.Public(err); e == nil || e.Code != wire.CodeUnavailable || e.Hint == "" {
		t.Errorf("an end that pauses: %v", err)
	}
}
