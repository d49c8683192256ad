package lifecycle_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// short is a TTL that a test can wait for, and that a busy machine does not miss.
const short = 2 * time.Second

func (w *world) createFor(d *daemon, life lifecycle.NewSpec) lifecycle.Info {
	w.T.Helper()
	life.Name = "demo"
	info, err := d.Create(w.Ctx(), alice, life, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	return info
}

// stays fails the test if demo stops within twice the time in which it would if it were idle.
func (w *world) stays(d *daemon, why string) {
	w.T.Helper()
	until := time.NewTimer(2 * short)
	defer until.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-until.C:
			return
		case <-tick.C:
			if got := w.State(d, "demo"); got != lifecycle.Running {
				w.T.Fatalf("%s: it is %s", why, got)
			}
		}
	}
}

func TestIdleSandboxStopsAndKeepsItsFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.createFor(d, lifecycle.NewSpec{TTL: short})
	w.Run(d, "echo kept >file; sleep 1000 & abandon")
	w.Eventually("it says when it stops", func() bool {
		i, _ := d.Get(w.Ctx(), alice, "demo")
		return i.StopsAt != nil
	})
	w.Eventually("it is stopped", func() bool { return w.State(d, "demo") == lifecycle.Stopped })
	if info, _ := d.Get(w.Ctx(), alice, "demo"); !strings.Contains(info.Reason, "idle") {
		t.Errorf("reason %q does not say that it was idle", info.Reason)
	}
	if res := w.Run(d, "cat file"); res.Output != "kept\n" {
		t.Errorf("after the start on use: the file has %q", res.Output)
	}
	w.Eventually("it is stopped again", func() bool {
		return w.State(d, "demo") == lifecycle.Stopped
	})
}

func TestUseKeepsASandboxRunning(t *testing.T) {
	t.Parallel()
	t.Run("a command", func(t *testing.T) {
		w := newWorld(t, sandboxtest.Options{})
		d := w.Start()
		w.createFor(d, lifecycle.NewSpec{TTL: short})
		a, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo"},
			attach.JoinOptions{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "read x",
			TimeoutMS: 1000}); err != nil {
			t.Fatal(err)
		}
		w.stays(d, "a command waits for an answer")
		if info, _ := d.Get(w.Ctx(), alice, "demo"); info.UsedBy == "" || info.StopsAt != nil {
			t.Errorf("info %+v does not say what uses it", info)
		}
		if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbType,
			Text: "answer"}); err != nil {
			t.Fatal(err)
		}
		w.Eventually("it is stopped", func() bool {
			return w.State(d, "demo") == lifecycle.Stopped
		})
	})
	t.Run("a watcher", func(t *testing.T) {
		w := newWorld(t, sandboxtest.Options{})
		d := w.Start()
		w.createFor(d, lifecycle.NewSpec{TTL: short})
		a, err := d.Sessions.Join(w.Ctx(), alice, wire.Target{Sandbox: "demo"},
			attach.JoinOptions{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		w.stays(d, "a person is attached")
		if got := a.Situation().Idle; got != short {
			t.Errorf("the status line got %v, want %v", got, short)
		}
		a.Close()
		w.Eventually("it is stopped", func() bool {
			return w.State(d, "demo") == lifecycle.Stopped
		})
	})
	t.Run("a connection", func(t *testing.T) {
		w := newWorld(t, sandboxtest.Options{})
		d := w.Start()
		w.createFor(d, lifecycle.NewSpec{TTL: short})
		c, err := d.Relay.Open(w.Ctx(), alice, "demo", nil)
		if err != nil {
			t.Fatal(err)
		}
		w.stays(d, "a client is connected")
		c.Close()
		w.Eventually("it is stopped", func() bool {
			return w.State(d, "demo") == lifecycle.Stopped
		})
	})
}

func TestStoppedSandboxIsRemovedOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	w.Options.TTL = short
	d := w.Start()
	w.createFor(d, lifecycle.NewSpec{DeleteAfter: short})
	w.Eventually("it is stopped", func() bool { return w.State(d, "demo") == lifecycle.Stopped })
	if info, _ := d.Get(w.Ctx(), alice, "demo"); info.RemovedAt == nil ||
		info.DeleteAfterMS != short.Milliseconds() || info.TTLms != short.Milliseconds() {
		t.Errorf("info %+v does not say when it is removed", info)
	}
	w.Eventually("it is removed", func() bool {
		list, _ := d.List(w.Ctx(), alice)
		return len(list) == 0
	})
	w.nothingLeft(d)
}

func TestLifeOutlivesTheDaemon(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.TTL = time.Hour
	d := w.Start()
	w.createFor(d, lifecycle.NewSpec{DeleteAfter: time.Hour})
	d.End()
	w.Options.TTL = 0
	d = w.Start()
	if info, _ := d.Get(w.Ctx(), alice, "demo"); info.TTLms != time.Hour.Milliseconds() ||
		info.DeleteAfterMS != time.Hour.Milliseconds() {
		t.Errorf("info after a restart: %+v", info)
	}
	if _, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "other", TTL: time.Millisecond},
		nil); d.Public(err) == nil || d.Public(err).Code != wire.CodeUsage {
		t.Errorf("a TTL of a millisecond: %v", err)
	}
}

// One that is started and stopped again while its removal waits is kept for as long as any other.
func TestRemovalByAgeLooksAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.createFor(d, lifecycle.NewSpec{DeleteAfter: short})
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	b := w.registry.Find("demo")
	err := b.Lock(w.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("its removal is due", b.Expiring)
	for _, state := range []lifecycle.State{lifecycle.Running, lifecycle.Stopped} {
		if err := b.Transition(w.Ctx(), func(f *lifecycle.Record) { f.State = state }); err != nil {
			t.Error(err)
		}
	}
	b.Unlock()
	w.Eventually("the removal had its turn", func() bool { return !b.Expiring() })
	if got := w.State(d, "demo"); got != lifecycle.Stopped {
		t.Errorf("it is %s", got)
	}
}

// A daemon that starts while the clock is wrong takes what was stopped a moment ago for old. What
// is removed does not come back: it waits until the clock can have been set.
func TestClockJumpRemovesNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		life    time.Duration
		removed bool // within the test
	}{{30 * 24 * time.Hour, false}, {short, true}} {
		t.Run(tt.life.String(), func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{})
			d := w.Start()
			w.createFor(d, lifecycle.NewSpec{DeleteAfter: tt.life})
			if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
				t.Fatal(err)
			}
			d.End()
			w.withStore(func(s *store.Store) { // as if a year had gone by
				rows, err := s.Sandboxes(w.Ctx())
				if err != nil || len(rows) != 1 {
					t.Fatalf("rows = %v, %v", rows, err)
				}
				rows[0].Since = rows[0].Since.AddDate(-1, 0, 0)
				if err := s.Put(w.Ctx(), rows[0]); err != nil {
					t.Fatal(err)
				}
			})
			d = w.Start()
			b := w.registry.Find("demo")
			if tt.removed {
				w.Eventually("it is removed", func() bool {
					return len(w.registry.All()) == 0
				})
				return
			}
			for range 3 {
				w.registry.CheckExpiry()
			}
			w.Eventually("no removal is under way", func() bool { return !b.Expiring() })
			info, err := d.Get(w.Ctx(), alice, "demo")
			if err != nil || info.State != lifecycle.Stopped {
				t.Fatalf("got %s, %v; want it stopped, with its files", info.State, err)
			}
			if left := time.Until(*info.RemovedAt); left < lifecycle.ClockSettles-time.Minute {
				t.Errorf("it is to be removed in %v, want time to set the clock", left)
			}
		})
	}
}

// fleeting is a backend that keeps only the files of volumes.
type fleeting struct{ *sandboxtest.Backend }

func (fleeting) CanStop(s sandbox.Spec) bool { return s.Volume.Size > 0 }

// A sandbox whose files a stop would remove is stopped neither by the daemon's default nor on
// request.
func TestNoLifeWithoutFiles(t *testing.T) {
	be := fleeting{sandboxtest.New(t, sandboxtest.Options{})}
	o := &lifecycle.Options{TTL: time.Hour, DeleteAfter: time.Hour}
	if life, err := o.PlanLife(lifecycle.NewSpec{}, be); err != nil || life != (lifecycle.Life{}) {
		t.Errorf("%+v, %v", life, err)
	}
	_, err := o.PlanLife(lifecycle.NewSpec{TTL: time.Minute}, be)
	if e, ok := errors.AsType[*wire.Error](err); !ok || !strings.Contains(e.Hint, "--volume") {
		t.Errorf("error %v", err)
	}
	life, err := o.PlanLife(lifecycle.NewSpec{TTL: time.Minute,
		Volume: sandbox.Volume{Size: 1 << 30}}, be)
	if err != nil || life != (lifecycle.Life{TTL: time.Minute, DeleteAfter: time.Hour}) {
		t.Errorf("%+v, %v", life, err)
	}
}
