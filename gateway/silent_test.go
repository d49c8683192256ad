package gateway_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// answerWithin is the 5 s within which calls are answered, and as much again for a machine that
// does other things.
const answerWithin = 10 * time.Second

// A call under way is lost, and not repeated, when its sandbox is frozen outside the daemon. Later
// calls are rejected until the sandbox answers again.
func TestFrozenSandboxAnswersCalls(t *testing.T) {
	for _, tt := range []struct {
		name   string
		as     sandbox.Status
		reason string
		state  lifecycle.State
	}{
		{"stopped by a signal", sandbox.Status{Halted: true}, wire.LostGuest, lifecycle.Broken},
		{"paused in the engine", sandbox.Status{Paused: true}, wire.LostPaused, lifecycle.Paused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, sandboxtest.Options{Freezes: true})
			d := w.Start()
			info := w.Create(d, "demo")
			ran := filepath.Join(t.TempDir(), "ran")
			a := w.Shared(d)
			relayed, err := d.Relay.Open(w.Ctx(), robot, "demo", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer relayed.Close()
			go relayed.Client()
			relayEnded := make(chan struct{})
			go func() { _ = relayed.Wait(); close(relayEnded) }()
			type answer struct {
				reply wire.Reply
				err   error
			}
			answered := make(chan answer, 1)
			run := func(a *attach.Attachment, command string) {
				reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: command})
				answered <- answer{reply, err}
			}
			listed := make(chan error, 1)
			go run(a, "echo ran >>"+ran+"; echo be''gun; until [ -e "+ran+
				".end ]; do sleep 0.1; done")
			w.Shows(a.Live(), 0, "begun\r\n")
			if err := w.Memory.Freeze(instanceOf(info), tt.as); err != nil {
				t.Fatal(err)
			}
			froze := time.Now()
			go func() {
				_, err := d.Sessions.List(w.Ctx(), alice, "demo")
				listed <- err
			}()
			got := <-answered
			wantLost(t, got.reply, got.err, []string{tt.reason})
			wantCode(t, <-listed, wire.CodeUnavailable)
			if late := time.Since(froze); late > answerWithin {
				t.Errorf("answered after %v", late)
			}
			_, err = d.Sessions.Screen(w.Ctx(), alice, main)
			wantCode(t, err, wire.CodeUnavailable)
			if !tt.as.Paused { // of one that is paused, a new call resumes it
				run(a, "echo refused >>"+ran)
				wantCode(t, (<-answered).err, wire.CodeUnavailable)
				_, err := d.Relay.Open(w.Ctx(), robot, "demo", nil)
				wantCode(t, err, wire.CodeUnavailable)
				_, err = d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo",
					Session: "other"}, attach.JoinOptions{Create: true})
				wantCode(t, err, wire.CodeUnavailable)
				<-relayEnded
			}
			w.Eventually("the state is known", func() bool {
				return w.State(d, "demo") == tt.state
			})
			if err := w.Memory.Unfreeze(instanceOf(info)); err != nil {
				t.Fatal(err)
			}
			w.Eventually("it runs again", func() bool {
				return w.State(d, "demo") == lifecycle.Running
			})
			if tt.as.Paused {
				select {
				case <-relayEnded:
					t.Error("the relayed connection has ended")
				default:
				}
			}
			if res := w.Run(d, "touch "+ran+".end"); res.Ended == wire.Lost {
				t.Errorf("the next call: %+v", res)
			}
			wantLines(t, ran, 1)
		})
	}
}

// A guest that takes long to answer, and of which nobody says that it is frozen, is only busy: its
// callers wait.
func TestBusyGuestKeepsItsCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.Options{Freezes: true})
	d := w.Start()
	info := w.Create(d, "demo")
	a := w.Shared(d)
	answered := make(chan *wire.Result, 1)
	go func() {
		reply, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
			Text: "echo be''gun; sleep 1"})
		if err != nil {
			t.Error(err)
		}
		answered <- reply.Result
	}()
	w.Shows(a.Live(), 0, "begun\r\n")
	if err := w.Memory.Freeze(instanceOf(info), sandbox.Status{}); err != nil {
		t.Fatal(err)
	}
	const silentAfter = 4 * time.Second // without an answer, if the engine says that it is frozen
	busy := time.NewTimer(2 * silentAfter)
	defer busy.Stop()
	select {
	case res := <-answered:
		t.Errorf("cut off: %+v", res)
	case <-busy.C:
		if err := w.Memory.Unfreeze(instanceOf(info)); err != nil {
			t.Fatal(err)
		}
		if res := <-answered; res.Ended != wire.Done {
			t.Errorf("%+v", res)
		}
	}
}
