package gateway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// unsteady is a backend whose sandboxes answer, but not always at the first try.
type unsteady struct {
	*sandboxtest.Backend
	fails atomic.Int64 // how many of the next connections break at once
}

func (u *unsteady) Dial(ctx context.Context, inst sandbox.Instance) (sandbox.Peer, error) {
	peer, err := u.Backend.Dial(ctx, inst)
	if err == nil && u.fails.Add(-1) >= 0 {
		peer.Conn.Close()
	}
	return peer, err
}

// A connection to the sandbox that breaks may take more than one try to come again. Who was
// attached is the same party then, holds the keyboard still, and what it asked for is done once.
func TestCutOffWhileTheSandboxIsAway(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	u := &unsteady{Backend: w.memory}
	w.backend = u
	d := w.start()
	info := w.create(d, "demo")
	person := w.join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err := person.Input(w.ctx(),
		[]byte("stty -echo; echo be''gun; cat >typed; stty echo; echo e''nd\r")); err != nil {
		t.Fatal(err)
	}
	w.shows(person.Live(), 0, "begun\r\n")
	other := wire.Target{Sandbox: "demo", Session: "other"}
	agent, err := d.Sessions.Shared(w.ctx(), robot, other, attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := agent.Request(w.ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "cat >read"}); err != nil || reply.Result.Ended != wire.Waiting {
		t.Fatalf("run = %+v, %v", reply.Result, err)
	}
	var want strings.Builder
	for i := range 3 {
		fmt.Fprintf(&want, "line %d\n", i)
		u.fails.Store(3)
		d.registry.Connections().Forget(info.ID)
		if err := person.Input(w.ctx(), fmt.Appendf(nil, "line %d\r", i)); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		if n := u.fails.Load(); n > 0 {
			t.Fatalf("line %d: %d connections that were to fail were not made", i, n)
		}
		reply, err := agent.Request(w.ctx(), wire.Request{Verb: wire.VerbType,
			Text: fmt.Sprintf("line %d", i)})
		if err != nil || reply.Result.Ended != wire.Waiting {
			t.Fatalf("line %d of the agent: %+v, %v", i, reply.Result, err)
		}
	}
	if err := person.Input(w.ctx(), []byte("\x04")); err != nil {
		t.Fatal(err)
	}
	w.shows(person.Live(), 0, "end\r\n")
	if reply, err := agent.Request(w.ctx(), wire.Request{Verb: wire.VerbKeys,
		Keys: []string{"^D"}}); err != nil || reply.Result.Ended != wire.Done {
		t.Fatalf("^D = %+v, %v", reply.Result, err)
	}
	for _, file := range []string{"typed", "read"} {
		reply, err := agent.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "cat " + file})
		if err != nil || reply.Result.Output != want.String() {
			t.Errorf("%s has %q, %v; want %q", file, reply.Result.Output, err, want.String())
		}
	}
}

// A connection that breaks again while a party comes back on it costs the party nothing. The second
// break comes later and later, so that it finds every step of that.
func TestCutOffWhileComingBack(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	info := w.create(d, "demo")
	a := w.join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err := a.Input(w.ctx(),
		[]byte("stty -echo; echo be''gun; cat >typed; stty echo; echo e''nd\r")); err != nil {
		t.Fatal(err)
	}
	// What comes while the line editor still has the terminal is not lines to cat.
	w.shows(a.Live(), 0, "begun\r\n")
	began := time.Now()
	d.registry.Connections().Forget(info.ID)
	if err := a.Input(w.ctx(), []byte("line 0\r")); err != nil {
		t.Fatal(err)
	}
	const steps = 40
	// What coming back took on this machine, and as much again.
	step := 2 * time.Since(began) / steps
	want := "line 0\n"
	for i := 1; i <= steps; i++ {
		d.registry.Connections().Forget(info.ID)
		again := time.AfterFunc(time.Duration(i)*step, func() {
			d.registry.Connections().Forget(info.ID)
		})
		if err := a.Input(w.ctx(), fmt.Appendf(nil, "line %d\r", i)); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		again.Stop()
		want += fmt.Sprintf("line %d\n", i)
	}
	if err := a.Input(w.ctx(), []byte("\x04")); err != nil {
		t.Fatal(err)
	}
	w.shows(a.Live(), 0, "end\r\n")
	if _, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbWait,
		For: []wire.Phase{wire.PhasePrompt}}); err != nil {
		t.Fatal(err)
	}
	reply, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "cat typed"})
	if err != nil || reply.Result.Output != want {
		t.Errorf("typed %q, %v", reply.Result.Output, err)
	}
	if state := w.state(d, "demo"); state != lifecycle.Running {
		t.Errorf("state = %s, want running", state)
	}
}

// What is known to be wrong is said at once: nobody waits for it to pass.
func TestCutOffForGood(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	info := w.create(d, "demo")
	a := w.join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	if err := a.Input(w.ctx(), []byte("echo be''gun\r")); err != nil {
		t.Fatal(err)
	}
	w.shows(a.Live(), 0, "begun\r\n")
	if err := w.memory.Destroy(w.ctx(), sandboxInstance(info)); err != nil {
		t.Fatal(err)
	}
	if err := a.Input(w.ctx(), []byte("x")); !errors.Is(err, lifecycle.ErrBroken) {
		t.Errorf("input to a sandbox that is gone: %v, want ErrBroken", err)
	}
}
