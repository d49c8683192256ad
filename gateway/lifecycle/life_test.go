package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// nothingLeft fails the test if there is a trace of any sandbox.
func (w *world) nothingLeft(d *daemon) {
	w.T.Helper()
	list, err := w.Memory.List(w.Ctx())
	if err != nil || len(list) != 0 {
		w.T.Errorf("the backend has %d instances, %v", len(list), err)
	}
	rows, err := d.Store.Sandboxes(w.Ctx())
	if err != nil || len(rows) != 0 {
		w.T.Errorf("the store has %d rows, %v", len(rows), err)
	}
	if infos, err := d.List(w.Ctx(), alice); err != nil || len(infos) != 0 {
		w.T.Errorf("the hub has %d sandboxes, %v", len(infos), err)
	}
	if entries, err := os.ReadDir(filepath.Join(w.Dir, "records")); err != nil ||
		len(entries) != 0 {
		w.T.Errorf("the records have %d directories, %v", len(entries), err)
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "echo x")
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(d)
	wantCode(t, d.Discard(w.Ctx(), alice, "demo"), wire.CodeNotFound)
	w.Create(d, "demo") // the name is free
}

func TestOneOfManyCreationsWins(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	var wg sync.WaitGroup
	errs := make([]error, 100)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo"},
				nil)
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, &wire.Error{Code: wire.CodeExists}):
			t.Errorf("loser: %v, want code exists", err)
		}
	}
	if list, _ := w.Memory.List(w.Ctx()); won != 1 || len(list) != 1 {
		t.Errorf("%d won, %d instances; want 1, 1", won, len(list))
	}
}

func TestReuseIsOneSandboxForAll(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	var wg sync.WaitGroup
	ids := make([]string, 20)
	for i := range ids {
		wg.Go(func() {
			info, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo", Reuse: true}, nil)
			if err != nil {
				t.Error(err)
			}
			ids[i] = info.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("ids %v are not one", ids)
		}
	}
	_, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "demo", Reuse: true}, nil)
	wantCode(t, err, wire.CodeExists)
}

func TestLimitOfSandboxes(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Options.Quota.Sandboxes = 2
	d := w.Start()
	w.Create(d, "one")
	w.Create(d, "two")
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "three"}, nil)
	wantCode(t, err, wire.CodeLimitSandboxes)
	if _, err := d.Create(w.Ctx(), bob, lifecycle.NewSpec{Name: "three"}, nil); err != nil {
		t.Errorf("bob's first: %v", err)
	}
	if err := d.Discard(w.Ctx(), alice, "one"); err != nil {
		t.Fatal(err)
	}
	w.Create(d, "three-of-alice")
}

func TestSpecsThatAreRefused(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	for name, spec := range map[string]lifecycle.NewSpec{
		"reserved":    {Name: "root"},
		"no name":     {Name: "../x"},
		"environment": {Name: "demo", Env: []string{"novalue"}},
		"newline":     {Name: "demo", Env: []string{"A=\n"}},
		"much":        {Name: "demo", Env: make([]string, 65)},
	} {
		if _, err := d.Create(w.Ctx(), alice, spec, nil); !errors.Is(err,
			&wire.Error{Code: wire.CodeUsage}) {
			t.Errorf("%s: %v, want code usage", name, err)
		}
	}
	_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo", Backend: "moon"}, nil)
	wantCode(t, err, wire.CodeUnavailable)
	_, err = d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo", Image: sandboxtest.NoImage},
		nil)
	wantCode(t, err, wire.CodeUnavailable)
	if !errors.Is(err, sandbox.ErrNoImage) || !strings.Contains(d.Public(err).Message, "image") ||
		d.Public(err).Hint == "" {
		t.Errorf("error without image: %v, %+v", err, d.Public(err))
	}
	w.nothingLeft(d)
}

func TestCreationThatFailsLeavesNothing(t *testing.T) {
	for _, stage := range []sandbox.Stage{sandbox.StageValidate, sandbox.StageImage,
		sandbox.StageKeys, sandbox.StageCreate, sandbox.StageGuest} {
		t.Run(string(stage), func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{Fail: func(s sandbox.Stage) error {
				if s == stage {
					return errors.New("broken on purpose")
				}
				return nil
			}})
			d := w.Start()
			_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo"}, nil)
			if err == nil || !strings.Contains(d.Public(err).Message, string(stage)) {
				t.Errorf("error = %v, want one that names the stage %s", err, stage)
			}
			w.nothingLeft(d)
		})
	}
}

// gate is a backend whose steps a test holds up.
type gate struct {
	*sandboxtest.Backend
	boot    func(ctx context.Context) error // before the real one
	destroy func(ctx context.Context) error
}

func (g *gate) Boot(ctx context.Context, spec sandbox.Spec) (sandbox.Instance, error) {
	if g.boot != nil {
		if err := g.boot(ctx); err != nil {
			return sandbox.Instance{}, &sandbox.BootError{Stage: sandbox.StageCreate, Err: err}
		}
	}
	return g.Backend.Boot(ctx, spec)
}

func (g *gate) Destroy(ctx context.Context, inst sandbox.Instance) error {
	if g.destroy != nil {
		if err := g.destroy(ctx); err != nil {
			return err
		}
	}
	return g.Backend.Destroy(ctx, inst)
}

func TestCallerWhoLeavesUndoesItsCreation(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	began := make(chan struct{})
	w.Backend = &gate{Backend: w.Memory, boot: func(ctx context.Context) error {
		close(began)
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	d := w.Start()
	ctx, cancel := context.WithCancel(w.Ctx())
	go func() { <-began; cancel() }()
	if _, err := d.Create(ctx, alice, lifecycle.NewSpec{Name: "demo"}, nil); !errors.Is(err,
		context.Canceled) {
		t.Errorf("error = %v, want context.Canceled", err)
	}
	w.nothingLeft(d)
}

func TestRemoveDuringCreation(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	began := make(chan struct{})
	w.Backend = &gate{Backend: w.Memory, boot: func(ctx context.Context) error {
		close(began)
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	d := w.Start()
	created := make(chan error, 1)
	go func() {
		_, err := d.Create(w.Ctx(), alice, lifecycle.NewSpec{Name: "demo"}, nil)
		created <- err
	}()
	<-began
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if err := <-created; err == nil {
		t.Error("the creation succeeded")
	}
	w.nothingLeft(d)
}

func TestRemovalIsFinishedWhenTheEngineIsBack(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	var down sync.Mutex
	var broken error
	w.Backend = &gate{Backend: w.Memory, destroy: func(context.Context) error {
		down.Lock()
		defer down.Unlock()
		return broken
	}}
	d := w.Start()
	w.Create(d, "demo")
	down.Lock()
	broken = sandbox.ErrEngine
	down.Unlock()
	err := d.Discard(w.Ctx(), alice, "demo")
	if !errors.Is(err, lifecycle.ErrEngine) {
		t.Fatalf("Remove without engine: %v, want ErrEngine", err)
	}
	if infos, _ := d.List(w.Ctx(), alice); len(infos) != 1 || infos[0].State != lifecycle.Deleting {
		t.Errorf("list = %+v, want one that is being deleted", infos)
	}
	w.Create(d, "demo") // the name is free all the same
	down.Lock()
	broken = nil
	down.Unlock()
	w.Eventually("the removal is finished", func() bool {
		list, _ := w.Memory.List(w.Ctx())
		rows, _ := d.Store.Sandboxes(w.Ctx())
		return len(list) == 1 && len(rows) == 1
	})
}

func TestStoppedStartsOnConnectWithItsFiles(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	w.Run(d, "echo kept >file")
	for range 2 {
		if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
			t.Fatal(err)
		}
		if got := w.State(d, "demo"); got != lifecycle.Stopped {
			t.Fatalf("state = %s, want stopped", got)
		}
	}
	var said []string
	conn, err := d.Relay.Open(w.Ctx(), alice, "demo", func(line string) {
		said = append(said, line)
	})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if len(said) == 0 {
		t.Error("starting it said nothing")
	}
	if got := w.State(d, "demo"); got != lifecycle.Running {
		t.Errorf("state = %s, want running", got)
	}
	if res := w.Run(d, "cat file"); res.Output != "kept\n" {
		t.Errorf("the file has %q", res.Output)
	}
	records, err := d.Sessions.Records(w.Ctx(), alice, "demo")
	if err != nil || len(records) != 2 || records[0].Run != 1 || records[0].Ended == nil ||
		records[1].Run != 0 {
		t.Errorf("records = %+v, %v; want an ended and a present one of main", records, err)
	}
	if again, _ := d.Start(w.Ctx(), alice, "demo", nil); again.ID != info.ID {
		t.Errorf("Start of what runs: %+v", again)
	}
}

func TestSandboxThatStopsByItselfIsNoticed(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	w.Run(d, "true")
	if err := w.Memory.Stop(w.Ctx(), sandbox.Instance{ID: info.ID}, time.Second); err != nil {
		t.Fatal(err)
	}
	w.Eventually("it is noted as stopped", func() bool {
		return w.State(d, "demo") == lifecycle.Stopped
	})
	if res := w.Run(d, "echo again"); res.Output != "again\n" {
		t.Errorf("output after starting again = %q", res.Output)
	}
}

func TestSandboxThatVanishesIsBroken(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	if err := w.Memory.Destroy(w.Ctx(), sandbox.Instance{ID: info.ID}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("it is noted as broken", func() bool {
		return w.State(d, "demo") == lifecycle.Broken
	})
	_, err := d.Relay.Open(w.Ctx(), alice, "demo", nil)
	if !errors.Is(err, lifecycle.ErrBroken) || !strings.Contains(d.Public(err).Message, "gone") {
		t.Errorf("Upstream: %v, want lifecycle.ErrBroken that says gone", err)
	}
	desc, err := d.Describe(w.Ctx(), alice, "demo")
	if err != nil || desc.State != lifecycle.Broken || !strings.Contains(desc.Health, "gone") {
		t.Errorf("Describe = %+v, %v", desc, err)
	}
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft(d)
}

func TestRescue(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "sleep 1000 & sleep 1000 &")
	killed, err := d.Rescue(w.Ctx(), alice, "demo")
	if err != nil || killed < 1 {
		t.Errorf("Rescue = %d, %v", killed, err)
	}
	if res := w.Run(d, "echo alive"); res.Output != "alive\n" {
		t.Errorf("output after the rescue = %q", res.Output)
	}
}

func TestEventsTellTheStory(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	d.Relay.Recorder(alice, "demo")(gateway.ExecEvent{Command: "id", Exit: 3, Bytes: 7})
	d.Relay.Recorder(alice, "demo")(gateway.ExecEvent{Command: "id", User: "root"})
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	events, err := d.Events(w.Ctx(), alice, "demo", 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events {
		got = append(got, e.Kind+string(e.Data))
	}
	want := []string{`state{"reason":"","state":"running"}`,
		`exec{"by":"person:alice","command":"id","exit":3,"bytes":7}`,
		`exec{"by":"person:alice","command":"id","user":"root","exit":0,"bytes":0}`,
		`stop{"by":"alice"}`, `state{"reason":"","state":"stopped"}`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events = %v, want %v", got, want)
	}
}

// pausing is a backend that pauses instances.
type pausing struct{ *sandboxtest.Backend }

func (p pausing) Pause(_ context.Context, inst sandbox.Instance) error {
	return p.Freeze(inst, sandbox.Status{Running: true, Paused: true})
}

func (p pausing) Resume(_ context.Context, inst sandbox.Instance) error { return p.Unfreeze(inst) }

// The event of an act names the principal that asked for it, also where the act is a side effect.
func TestEventsNameTheCaller(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{Freezes: true})
	w.Backend = pausing{w.Memory}
	d := w.Start()
	w.Create(d, "demo")
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightDrive); err != nil {
		t.Fatal(err)
	}
	command := func() error {
		conn, err := d.Relay.Open(w.Ctx(), bob, "demo", nil)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	steps := []struct {
		name string
		do   func() error
		want []string // the events; the state events of each are left out
	}{
		{"start", func() error { _, err := d.Start(w.Ctx(), alice, "demo", nil); return err },
			[]string{`stop{"by":"alice"}`, `start{"by":"alice"}`}},
		{"command starts", command, []string{`stop{"by":"alice"}`, `start{"by":"bob"}`}},
		{"session starts", func() error {
			a, err := d.Sessions.Join(w.Ctx(), bob, main, attach.JoinOptions{Create: true})
			if err == nil {
				err = a.Close()
			}
			return err
		}, []string{`stop{"by":"alice"}`, `start{"by":"bob"}`}},
		{"resume", func() error { return d.Resume(w.Ctx(), alice, "demo") },
			[]string{`pause{"by":"alice"}`, `resume{"by":"alice"}`}},
		{"command resumes", func() error { return d.Relay.Wake(w.Ctx(), bob, "demo") },
			[]string{`pause{"by":"alice"}`, `resume{"by":"bob"}`}},
	}
	for _, step := range steps {
		before, err := d.Events(w.Ctx(), alice, "demo", 100)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(step.want[0], "pause") {
			err = d.Pause(w.Ctx(), alice, "demo", false)
		} else {
			err = d.Stop(w.Ctx(), alice, "demo")
		}
		if err == nil {
			err = step.do()
		}
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		events, err := d.Events(w.Ctx(), alice, "demo", 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range events[len(before):] {
			if e.Kind != "state" {
				got = append(got, e.Kind+string(e.Data))
			}
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: events %v, want %v", step.name, got, step.want)
		}
	}
}

func TestSecondHubIsRefused(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	w.Start()
	_, err := store.Open(w.Ctx(), w.Dir)
	if locked, ok := errors.AsType[*store.LockedError](err); !ok || locked.Pid != os.Getpid() {
		t.Errorf("second store: %v, want *store.LockedError with our pid", err)
	}
}
