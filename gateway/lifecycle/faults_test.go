package lifecycle_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Text for a program is refused when the sandbox of the program has ended: it starts neither the
// sandbox nor a shell, which would run it.
func TestTypeStartsNoSandbox(t *testing.T) {
	t.Parallel()
	for _, verb := range []wire.Verb{wire.VerbType, wire.VerbKeys} {
		for _, startedAgain := range []bool{false, true} {
			w := newWorld(t, sandboxtest.Options{})
			d := w.Start()
			info := w.Create(d, "demo")
			ran := filepath.Join(t.TempDir(), "ran")
			a := w.Shared(d)
			asks, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
				Text: "bash -c 'read -s x'"})
			if err != nil || asks.Result.Ended != wire.Waiting {
				t.Fatalf("%+v, %v", asks.Result, err)
			}
			if err := w.Memory.Kill(w.Ctx(), instanceOf(info)); err != nil {
				t.Fatal(err)
			}
			if startedAgain {
				if _, err := d.Start(w.Ctx(), alice, "demo", nil); err != nil {
					t.Fatal(err)
				}
			}
			r := wire.Request{Verb: verb, Text: "echo ran >>" + ran}
			if verb == wire.VerbKeys {
				r = wire.Request{Verb: verb, Keys: []string{"e", "Enter"}}
			}
			if typist, err := d.Sessions.Shared(w.Ctx(), robot, main,
				attach.JoinOptions{Create: true, Typed: true}); err == nil {
				if reply, err := typist.Request(w.Ctx(), r); err == nil {
					t.Errorf("%s, started again %v: %+v", verb, startedAgain, reply.Result)
				}
			}
			// The call may have ended before the daemon has seen the end of the sandbox.
			if !startedAgain {
				w.Eventually(string(verb)+" starts no sandbox", func() bool {
					return w.State(d, "demo") == lifecycle.Stopped
				})
			}
			wantLines(t, ran, 0)
		}
	}
}

// So is text that comes after another client has opened a new shell, before anyone has used it. The
// caller then knows, and may type.
func TestTypeIntoAnUnseenShell(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	ran := filepath.Join(t.TempDir(), "ran")
	if asks, err := w.Shared(d).Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "bash -c 'read -s x'"}); err != nil || asks.Result.Ended != wire.Waiting {
		t.Fatalf("%+v, %v", asks.Result, err)
	}
	if err := w.Memory.Kill(w.Ctx(), instanceOf(info)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(w.Ctx(), alice, "demo", nil); err != nil {
		t.Fatal(err)
	}
	w.Join(d, alice, main, attach.JoinOptions{Create: true})
	for _, want := range []int{0, 1} {
		typist, err := d.Sessions.Shared(w.Ctx(), robot, main,
			attach.JoinOptions{Create: true, Typed: true})
		if err != nil {
			t.Fatal(err)
		}
		_, err = typist.Request(w.Ctx(), wire.Request{Verb: wire.VerbType,
			Text: "echo ran >>" + ran})
		if want == 0 {
			wantCode(t, err, wire.CodeUnavailable)
		} else if err != nil {
			t.Error(err)
		}
		wantLines(t, ran, want)
	}
}

// A sandbox that ended a moment ago is started, also when the daemon has not heard of its end.
func TestStartSeesTheEnd(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	for range 10 {
		if err := w.Memory.Kill(w.Ctx(), instanceOf(info)); err != nil {
			t.Fatal(err)
		}
		got, err := d.Start(w.Ctx(), alice, "demo", nil)
		if err != nil || got.State != lifecycle.Running {
			t.Fatalf("%s, %v", got.State, err)
		}
		if s, err := w.Memory.Inspect(w.Ctx(), instanceOf(got)); err != nil || !s.Running {
			t.Fatalf("it is said to run: %+v, %v", s, err)
		}
		info = got
	}
}

// A call that reaches for a sandbox while it is paused is refused at once: a frozen sandbox does
// not answer.
func TestPauseEndsReaching(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	b := w.registry.Find("demo")
	dialing := make(chan struct{})
	failed := make(chan error)
	go func() {
		_, err := lifecycle.DialRunning(w.Ctx(), b, nil, func(ctx context.Context,
			_ sandbox.Instance) (struct{}, error) {
			close(dialing)
			<-ctx.Done()
			return struct{}{}, context.Cause(ctx)
		})
		failed <- err
	}()
	<-dialing
	if err := b.Transition(w.Ctx(), func(f *lifecycle.Record) {
		f.State = lifecycle.Paused
	}); err != nil {
		t.Fatal(err)
	}
	err := <-failed
	if wantCode(t, err, wire.CodeUnavailable); !errors.As(err, new(*interrupt.FrozenError)) {
		t.Errorf("%v, want that it was paused", err)
	}
}

// A call that is cut off, by the end of its caller's access or of the daemon, is lost: it was
// begun.
func TestCutOffIsLost(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	for _, tt := range []struct {
		session string // each its own: what interrupts one command may reach the next
		cause   error
		reason  string
	}{
		{"access", wire.Errorf(wire.CodeDenied, "your access has ended"), wire.LostDetached},
		{"daemon", lifecycle.ErrClosed, wire.LostGateway},
		{"caller", context.Canceled, wire.LostDetached},
	} {
		a, err := d.Sessions.Shared(w.Ctx(), alice, wire.Target{Sandbox: "demo",
			Session: tt.session}, attach.JoinOptions{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cutOff := context.WithCancelCause(w.Ctx())
		answered := make(chan wire.Reply, 1)
		go func() {
			reply, err := a.Request(ctx, wire.Request{Verb: wire.VerbRun, Text: untilKilled})
			if err == nil {
				t.Errorf("%v: no error", tt.cause)
			}
			answered <- reply
		}()
		w.Eventually("the command runs", func() bool { return begun(a) })
		cutOff(tt.cause)
		if r := (<-answered).Result; r == nil || r.Ended != wire.Lost || r.Error == nil ||
			r.Error.Reason != tt.reason {
			t.Errorf("%v: %+v", tt.cause, r)
		}
	}
}

// untilKilled is a command that begun reports.
const untilKilled = "echo begun; sleep 1000"

// begun reports whether untilKilled runs in the session of a. The phase does not say so: it is the
// same while the shell starts, before anything was typed.
func begun(a *attach.Attachment) bool { return a.Live().LastLine() == "begun" }
