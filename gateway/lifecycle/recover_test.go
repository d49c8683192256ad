package lifecycle_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// withStore changes the rows of a daemon that is not running.
func (w *world) withStore(f func(s *store.Store)) {
	w.T.Helper()
	s, err := store.Open(w.Ctx(), w.Dir)
	if err != nil {
		w.T.Fatal(err)
	}
	f(s)
	if err := s.Close(); err != nil {
		w.T.Fatal(err)
	}
}

// What a daemon that died leaves in the store, and what the next one makes of it: for each state,
// with and without an instance in the backend.
func TestStateAfterACrash(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		stored   lifecycle.State
		instance string          // running, stopped, gone
		want     lifecycle.State // "" is nothing left
	}{
		{lifecycle.Creating, "running", ""},
		{lifecycle.Creating, "gone", ""},
		{lifecycle.Deleting, "running", ""},
		{lifecycle.Deleting, "gone", ""},
		{lifecycle.Running, "running", lifecycle.Running},
		{lifecycle.Running, "stopped", lifecycle.Stopped},
		{lifecycle.Running, "gone", lifecycle.Broken},
		{lifecycle.Stopped, "running", lifecycle.Stopped},
		{lifecycle.Stopped, "stopped", lifecycle.Stopped},
		{lifecycle.Broken, "running", lifecycle.Running},
		{lifecycle.Broken, "gone", lifecycle.Broken},
		{lifecycle.Paused, "running", lifecycle.Running},
		{lifecycle.Lost, "running", lifecycle.Lost},
	} {
		t.Run(string(tt.stored)+" "+tt.instance, func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{})
			d := w.Start()
			info := w.Create(d, "demo")
			w.Run(d, "true")
			d.End()
			inst := instanceOf(info)
			var err error
			switch tt.instance {
			case "stopped":
				err = w.Memory.Stop(w.Ctx(), inst, time.Second)
			case "gone":
				err = w.Memory.Destroy(w.Ctx(), inst)
			}
			if err != nil {
				t.Fatal(err)
			}
			w.withStore(func(s *store.Store) {
				rows, err := s.Sandboxes(w.Ctx())
				if err != nil || len(rows) != 1 {
					t.Fatalf("rows = %v, %v", rows, err)
				}
				rows[0].State = string(tt.stored)
				if tt.stored == lifecycle.Creating {
					rows[0].Instance = []byte(`{"backend":"memory"}`) // Boot did not come back
				}
				if err := s.Put(w.Ctx(), rows[0]); err != nil {
					t.Fatal(err)
				}
			})

			d = w.Start()
			w.Eventually("state "+string(tt.want), func() bool {
				infos, err := d.List(w.Ctx(), alice)
				if tt.want == "" {
					list, _ := w.Memory.List(w.Ctx())
					return err == nil && len(infos) == 0 && len(list) == 0
				}
				return err == nil && len(infos) == 1 && infos[0].State == tt.want
			})
			if tt.want == "" {
				w.nothingLeft(d)
				return
			}
			if tt.want == lifecycle.Stopped { // a start that did not come back is undone
				w.Eventually("no program", func() bool {
					s, err := w.Memory.Inspect(w.Ctx(), inst)
					return err == nil && !s.Running
				})
			}
			// The store agrees with the hub.
			rows, err := d.Store.Sandboxes(w.Ctx())
			if err != nil || len(rows) != 1 || rows[0].State != string(tt.want) {
				t.Errorf("rows = %+v, %v", rows, err)
			}
			// A broken one that is gone can only be removed; all others start.
			info, err = d.Start(w.Ctx(), alice, "demo", nil)
			if tt.instance == "gone" {
				if !errors.Is(err, lifecycle.ErrBroken) {
					t.Errorf("Start of what is gone: %v, want ErrBroken", err)
				}
			} else if err != nil || info.State != lifecycle.Running {
				t.Errorf("Start = %s, %v", info.State, err)
			}
		})
	}
}

// A store that went missing costs nothing: what carries our label is found again, by the name,
// owner and spec that are noted beside its records.
func TestLostStoreIsRebuilt(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	w.Run(d, "echo ke''pt")
	d.End()
	for _, f := range []string{store.File, store.File + "-wal", store.File + "-shm"} {
		if err := os.Remove(filepath.Join(w.Dir, f)); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	d = w.Start()
	got, err := d.Get(w.Ctx(), alice, "demo")
	if err != nil || got.ID != info.ID || got.State != lifecycle.Running {
		t.Fatalf("Get = %+v, %v", got, err)
	}
	w.Run(d, "true")
	if text, r := w.Recorded(d, main); !strings.Contains(text, "kept\r\n") || len(r.Gaps()) != 0 {
		t.Errorf("the record was not gone on with: %q", text)
	}
}

// An instance without a manifest belongs to the admin, is lost, and stays as it is until its owner
// acts.
func TestOrphanIsAdoptedAndLeftAlone(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	if _, err := w.Memory.Boot(w.Ctx(), sandbox.Spec{ID: "stray", Name: "whatever"}); err != nil {
		t.Fatal(err)
	}
	d := w.Start()
	got, err := d.Get(w.Ctx(), alice, "lost-stray")
	if err != nil || got.State != lifecycle.Lost || got.Reason == "" {
		t.Fatalf("Get = %+v, %v", got, err)
	}
	d.End()
	d = w.Start()
	if got := w.State(d, "lost-stray"); got != lifecycle.Lost {
		t.Errorf("state after another start = %s, want lost", got)
	}
	if _, err := d.Start(w.Ctx(), alice, "lost-stray", nil); err != nil {
		t.Fatal(err)
	}
	if got := w.State(d, "lost-stray"); got != lifecycle.Running {
		t.Errorf("state after Start = %s, want running", got)
	}
	if err := d.Discard(w.Ctx(), alice, "lost-stray"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(d)
}

// away is a backend whose engine does not answer while down is set.
type away struct {
	*sandboxtest.Backend
	down atomic.Bool
}

func (a *away) err() error {
	if a.down.Load() {
		return sandbox.ErrEngine
	}
	return nil
}

func (a *away) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	if err := a.err(); err != nil {
		return sandbox.Instance{}, &sandbox.BootError{Stage: sandbox.StageEngine, Err: err}
	}
	return a.Backend.Boot(ctx, spec)
}

func (a *away) List(ctx context.Context) ([]sandbox.Instance, error) {
	if err := a.err(); err != nil {
		return nil, err
	}
	return a.Backend.List(ctx)
}

func (a *away) Inspect(ctx context.Context, inst sandbox.Instance) (sandbox.Status, error) {
	if err := a.err(); err != nil {
		return sandbox.Status{}, err
	}
	return a.Backend.Inspect(ctx, inst)
}

func (a *away) Destroy(ctx context.Context, inst sandbox.Instance) error {
	if err := a.err(); err != nil {
		return err
	}
	return a.Backend.Destroy(ctx, inst)
}

// An engine that is away takes nothing with it: sandboxes that answer are used, nothing is removed,
// and what was asked for meanwhile says whose fault it is.
func TestEngineThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	engine := &away{Backend: w.Memory}
	w.Backend = engine
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	d.End()
	engine.down.Store(true)
	d = w.Start()
	if res := w.Run(d, "echo works"); res.Output != "works\n" {
		t.Errorf("output without engine = %q", res.Output)
	}
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "other"}, nil)
	if !errors.Is(err, lifecycle.ErrEngine) || d.Public(err).Code != wire.CodeUnavailable ||
		d.Public(err).Hint == "" {
		t.Errorf("Create without engine: %v", err)
	}
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("state = %s, want running", got)
	}
}

func TestCallsAfterTheEnd(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	a := w.Join(d, alice, main, attach.JoinOptions{})
	l := a.Live()
	reading := make(chan error, 1)
	go func() {
		_, err := l.ReadAt(context.Background(), l.Len()+1, make([]byte, 1))
		reading <- err
	}()
	d.End()
	if err := <-reading; !errors.Is(err, lifecycle.ErrClosed) {
		t.Errorf("a read under way = %v, want ErrClosed", err)
	}
	if err := a.Wait(w.Ctx()); !errors.Is(err, lifecycle.ErrClosed) {
		t.Errorf("Wait = %v, want ErrClosed", err)
	}
	if _, err := d.Relay.Open(w.Ctx(), alice, "demo", nil); !errors.Is(err, lifecycle.ErrClosed) {
		t.Errorf("Upstream = %v, want ErrClosed", err)
	}
	if err := d.Discard(w.Ctx(), alice, "demo"); !errors.Is(err, lifecycle.ErrClosed) {
		t.Errorf("Remove = %v, want ErrClosed", err)
	}
}

// late is a backend that carries out a request after its caller has gone.
type late struct {
	*sandboxtest.Backend
	destroyed atomic.Int32
	made      func() // at the first Destroy, which finds nothing
}

func (l *late) Destroy(ctx context.Context, inst sandbox.Instance) error {
	err := l.Backend.Destroy(ctx, inst)
	if l.destroyed.Add(1) == 1 {
		l.made()
	}
	return err
}

// R5: what a backend was asked for by a daemon that died is removed also when the backend makes it
// after another caller looked.
func TestR5LateCreation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{})
	w.Options.SetLateBoot(2 * time.Second)
	l := &late{Backend: w.Memory}
	w.Backend = l
	d := w.Start()
	w.Create(d, "demo")
	d.End()
	w.withStore(func(s *store.Store) {
		rows, err := s.Sandboxes(w.Ctx())
		if err != nil || len(rows) != 1 {
			t.Fatalf("rows = %v, %v", rows, err)
		}
		if err := w.Memory.Destroy(w.Ctx(), sandbox.Instance{ID: rows[0].ID}); err != nil {
			t.Fatal(err)
		}
		l.made = func() {
			if _, err := w.Memory.Boot(context.Background(), sandbox.Spec{ID: rows[0].ID,
				Name: "demo"}); err != nil {
				t.Error(err)
			}
		}
		rows[0].State, rows[0].Instance = string(lifecycle.Creating), []byte(`{"backend":"memory"}`)
		if err := s.Put(w.Ctx(), rows[0]); err != nil {
			t.Fatal(err)
		}
	})
	d = w.Start()
	w.Create(d, "demo") // the name is free meanwhile
	w.Eventually("the late one is removed", func() bool {
		list, _ := w.Memory.List(w.Ctx())
		rows, _ := d.Store.Sandboxes(w.Ctx())
		return len(list) == 1 && len(rows) == 1
	})
	if n := l.destroyed.Load(); n < 2 {
		t.Errorf("it was listed for %d times", n)
	}
}

// stale is a backend whose first list is read when all that is on it has been removed.
type stale struct {
	*sandboxtest.Backend
	destroyed chan struct{}
	once      sync.Once
}

func (s *stale) List(ctx context.Context) ([]sandbox.Instance, error) {
	list, err := s.Backend.List(ctx)
	select {
	case <-s.destroyed:
	case <-ctx.Done():
	}
	return list, err
}

func (s *stale) Destroy(ctx context.Context, inst sandbox.Instance) error {
	err := s.Backend.Destroy(ctx, inst)
	// By then it is forgotten.
	s.once.Do(func() { time.AfterFunc(time.Second, func() { close(s.destroyed) }) })
	return err
}

// R5: a removal that a new daemon finishes while it asks what there is brings nothing back.
func TestR5RemovalDuringTheList(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	d.End()
	w.withStore(func(s *store.Store) {
		rows, err := s.Sandboxes(w.Ctx())
		if err != nil || len(rows) != 1 {
			t.Fatalf("rows = %v, %v", rows, err)
		}
		rows[0].State = string(lifecycle.Deleting)
		if err := s.Put(w.Ctx(), rows[0]); err != nil {
			t.Fatal(err)
		}
	})
	w.Backend = &stale{Backend: w.Memory, destroyed: make(chan struct{})}
	d = w.Start()
	w.nothingLeft(d)
}

// sweeper is a backend that fails to sweep once.
type sweeper struct {
	*sandboxtest.Backend
	swept chan error
}

func (s sweeper) Sweep(ctx context.Context) error {
	err := errors.New("the engine is busy")
	if len(s.swept) > 0 {
		err = nil
	}
	select {
	case s.swept <- err:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// What calls of an earlier daemon left may come late, or be removed at the second try: a young
// daemon sweeps more than once.
func TestSweepsAgain(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	s := sweeper{w.Memory, make(chan error, lifecycle.Sweeps)}
	w.Backend = s
	w.Start()
	w.Eventually("it is swept again", func() bool { return len(s.swept) >= 2 })
	if err := <-s.swept; err == nil {
		t.Error("the first sweep did not fail")
	}
}
