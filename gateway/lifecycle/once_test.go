package lifecycle_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// heldDialing is a backend whose dialling can be held up.
type heldDialing struct {
	*sandboxtest.Backend
	hold    atomic.Bool
	stopped atomic.Bool
	dialing chan bool // receives when a dial is held up: whether it began after stopped was set
}

func (h *heldDialing) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	late := h.stopped.Load()
	if h.hold.Load() {
		select {
		case h.dialing <- late:
		case <-ctx.Done():
		}
		<-ctx.Done()
	}
	return h.Backend.Dial(ctx, inst)
}

// A call that is not sent yet when the sandbox is stopped does not start it again: that is for a
// later call.
func TestCallBeforeStopStartsNothing(t *testing.T) {
	for name, call := range map[string]func(context.Context, *daemon) error{
		"exec": func(ctx context.Context, d *daemon) error {
			up, err := d.Relay.Open(ctx, robot, "demo", nil)
			if err == nil {
				up.Close()
			}
			return err
		},
		"run": func(ctx context.Context, d *daemon) error {
			_, err := d.Sessions.Shared(ctx, robot, main, attach.JoinOptions{Create: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, sandboxtest.Options{})
			held := &heldDialing{Backend: w.Memory, dialing: make(chan bool)}
			w.Backend = held
			d := w.Start()
			w.Create(d, "demo")
			b := w.registry.Find("demo")
			b.Disconnect(errors.New("so that a call has to dial"))
			held.hold.Store(true)
			answered := make(chan error, 1)
			go func() { answered <- call(w.Ctx(), d) }()
			<-held.dialing
			if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
				t.Fatal(err)
			}
			held.stopped.Store(true)
			for waiting := true; waiting; {
				select {
				case err := <-answered:
					wantCode(t, err, wire.CodeUnavailable)
					waiting = false
				case late := <-held.dialing:
					if late {
						t.Fatal("it dials again after the stop")
					}
				}
			}
			if state := w.State(d, "demo"); state != lifecycle.Stopped {
				t.Errorf("the sandbox is %s after it was stopped", state)
			}
		})
	}
}

// A party that comes back to its session on a new connection starts no sandbox that was stopped
// meanwhile.
func TestReattachStartsNothing(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Shared(d)
	if _, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"}); err != nil {
		t.Fatal(err)
	}
	b := w.registry.Find("demo")
	c, err := b.Dial(w.Ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.Ctx(), 2*lifecycle.FirstRetry)
	defer cancel()
	a.Resume(ctx, c)
	if state := w.State(d, "demo"); state != lifecycle.Stopped {
		t.Errorf("the sandbox is %s", state)
	}
}

// Why a sandbox ended is no longer so once it runs, however it came to run: a host is logged in to
// again, and not started.
func TestFateEndsWhenSandboxRuns(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	b := w.registry.Find("demo")
	b.SetEndReason(wire.LostStopped)
	b.Observed(w.Ctx(), lifecycle.Stopped, "stopped by itself")
	if err := b.Transition(w.Ctx(), func(f *lifecycle.Record) {
		f.State, f.Reason = lifecycle.Running, ""
	}); err != nil {
		t.Fatal(err)
	}
	if over := b.Guest().Over(); over != nil {
		t.Errorf("calls are lost: %v", over)
	}
}
