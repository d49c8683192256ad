package docker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Stop gives processes their grace time and no more; a start that fails leaves the sandbox stopped.
func TestStop(t *testing.T) {
	f := newFlaky(t)
	b := testBackend(t, f.use)
	inst := boot(t, b, sandbox.Spec{})
	mustSh(t, login(t, b, inst),
		`(trap "" HUP TERM; sleep 1000 >/dev/null 2>&1) >/dev/null 2>&1 & echo`)
	began := time.Now()
	if err := b.Stop(t.Context(), inst, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 9*time.Second {
		t.Errorf("with a process that does not go: took %v, want the grace and a little", took)
	}
	if got, err := b.Inspect(t.Context(), inst); err != nil || got.Running || got.ExitCode != 0 {
		t.Errorf("got %+v, %v; want an orderly end", got, err)
	}

	cause := errors.New("changed my mind")
	for _, stage := range []sandbox.Stage{sandbox.StageEngine, sandbox.StageKeys,
		sandbox.StageAttach, sandbox.StageStart, sandbox.StageGuest} {
		ctx, cancel := context.WithCancelCause(t.Context())
		b.at = func(s sandbox.Stage) {
			if s == stage {
				cancel(cause)
			}
		}
		_, err := b.Start(ctx, inst)
		cancel(nil)
		b.at = nil
		wantStage(t, err, stage)
		if !errors.Is(err, cause) {
			t.Errorf("%s: got error %v, want %v", stage, err, cause)
		}
		if got, err := b.Inspect(t.Context(), inst); err != nil || got.Running {
			t.Errorf("%s: got %+v, %v; want it stopped", stage, got, err)
		}
	}
	if _, err := b.Start(t.Context(), inst); err != nil {
		t.Fatal(err)
	}

	// Stop kills a guest that cannot obey: here it is frozen until the order times out.
	pause := func() {
		if _, err := b.engine.api.ContainerPause(t.Context(), inst.Ref,
			client.ContainerPauseOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pause()
	if got, err := b.Inspect(t.Context(), inst); err != nil || !got.Paused {
		t.Errorf("got %+v, %v; want it paused", got, err)
	}
	if err := b.Stop(t.Context(), inst, time.Second); err != nil {
		t.Fatalf("stop a paused one: %v", err)
	}
	if got, err := b.Inspect(t.Context(), inst); err != nil || got.Running {
		t.Errorf("got %+v, %v; want it stopped", got, err)
	}
}

// Containers that merely resemble ours are left alone: one with our labels and another name, such
// as one started from a committed sandbox, and one with our name and another daemon's label.
func TestStrangersAreLeftAlone(t *testing.T) {
	b := testBackend(t)
	mine, other := newID(), newID()
	strangers := map[string]map[string]string{
		newID():             {labelDaemon: b.opts.DaemonID, labelID: other},
		containerName(mine): {labelDaemon: "else", labelID: mine},
	}
	for name, labels := range strangers {
		r, err := b.engine.api.ContainerCreate(
			t.Context(), client.ContainerCreateOptions{Name: name,
				Config: &container.Config{Image: busybox, Labels: labels}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := b.engine.api.ContainerRemove(context.Background(), r.ID,
				client.ContainerRemoveOptions{}); err != nil {
				t.Errorf("%s is not there any more: %v", name, err)
			}
		}()
	}
	list, err := b.List(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("list: got %v, error %v; want nothing", list, err)
	}
	for _, id := range []string{mine, other} {
		if err := b.Destroy(t.Context(), sandbox.Instance{ID: id}); err != nil {
			t.Errorf("destroy %s: %v", id, err)
		}
	}
	if _, err := b.Boot(t.Context(), sandbox.Spec{ID: mine, Image: busybox}); err == nil {
		t.Error("boot under a name that is taken: got no error")
	}
	if err := b.Destroy(t.Context(), sandbox.Instance{ID: "../../etc"}); err == nil {
		t.Error("destroy of a path: got no error")
	}
}
