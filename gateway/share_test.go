package gateway_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// owners are the acts that stay the owner's, whatever a share allows.
func owners(ctx context.Context, d *daemon, p gateway.Principal) map[string]error {
	_, rescue := d.Rescue(ctx, p, "demo")
	_, start := d.Start(ctx, p, "demo", nil)
	_, kick := d.Sessions.Disconnect(ctx, p, main, "person:alice")
	_, unshare := d.Unshare(ctx, p, "demo", "carl")
	return map[string]error{"rm": d.Discard(ctx, p, "demo"), "stop": d.Stop(ctx, p, "demo"),
		"start": start, "rescue": rescue,
		"kick": kick, "share": d.Share(ctx, p, "demo", "carl", wire.RightDrive), "unshare": unshare}
}

func TestShare(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "echo one")
	unknown := d.Share(w.Ctx(), bob, "demo", "carl", wire.RightDrive)
	other := d.Share(w.Ctx(), bob, "nothing", "carl", wire.RightDrive)
	wantCode(t, unknown, wire.CodeNotFound)
	wantCode(t, other, wire.CodeNotFound)
	for _, bad := range []string{"", "alice", "a b", "-x", "x\n", string(make([]byte, 65))} {
		wantCode(t, d.Share(w.Ctx(), alice, "demo", bad, wire.RightWatch), wire.CodeUsage)
	}

	// To watch.
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightWatch); err != nil {
		t.Fatal(err)
	}
	info, err := d.Get(w.Ctx(), bob, "demo")
	if err != nil || !slices.Equal(info.SharedWith,
		[]lifecycle.Share{{Principal: "bob", Rights: wire.RightWatch}}) || info.Owner != "alice" {
		t.Errorf("get: %+v, %v", info.SharedWith, err)
	}
	if all, err := d.List(w.Ctx(), bob); err != nil || len(all) != 1 {
		t.Errorf("list: %v, %v", all, err)
	}
	if s, err := d.Sessions.List(w.Ctx(), bob, "demo"); err != nil || len(s) != 1 {
		t.Errorf("sessions: %v, %v", s, err)
	}
	if _, err := d.Describe(w.Ctx(), bob, "demo"); err != nil {
		t.Errorf("describe: %v", err)
	}
	if r, err := d.Sessions.OpenRecord(w.Ctx(), bob, main, 0); err != nil {
		t.Errorf("record: %v", err)
	} else {
		r.Close()
	}
	watching, err := d.Sessions.Join(w.Ctx(), bob, main, attach.JoinOptions{Create: true, Cols: 40,
		Rows: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Close()
	wantCode(t, watching.Input(w.Ctx(), []byte("x")), wire.CodeDenied)
	wantCode(t, watching.Take(w.Ctx()), wire.CodeDenied)
	wantCode(t, watching.Private(w.Ctx(), true), wire.CodeDenied)
	party, err := d.Sessions.Shared(w.Ctx(), bobsRobot, main,
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := party.Request(w.Ctx(), wire.Request{Verb: wire.VerbScreen}); err != nil {
		t.Errorf("screen: %v", err)
	}
	if _, err := party.Request(w.Ctx(), wire.Request{Verb: wire.VerbWait}); err != nil {
		t.Errorf("wait: %v", err)
	}
	_, err = party.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun, Text: "true"})
	wantCode(t, err, wire.CodeDenied)
	_, err = d.Relay.Open(w.Ctx(), bob, "demo", nil)
	wantCode(t, err, wire.CodeDenied)
	_, err = d.Relay.Terminal(w.Ctx(), bob, "demo", "x", 80, 24)
	wantCode(t, err, wire.CodeDenied)
	_, err = d.Sessions.Join(w.Ctx(), bob, main, attach.JoinOptions{Fresh: true})
	wantCode(t, err, wire.CodeDenied)
	_, err = d.Sessions.Join(w.Ctx(), bob, wire.Target{Sandbox: "demo", Session: "another"},
		attach.JoinOptions{Create: true})
	wantCode(t, err, wire.CodeNotFound)
	wantCode(t, d.Sessions.Close(w.Ctx(), bob, main), wire.CodeDenied)
	for what, err := range owners(w.Ctx(), d, bob) {
		if !errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("%s: %v", what, err)
		}
	}

	// To drive: what runs is not ended by more rights.
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightDrive); err != nil {
		t.Fatal(err)
	}
	if err := watching.Err(); err != nil {
		t.Errorf("the watcher: %v", err)
	}
	driving, err := d.Sessions.Join(w.Ctx(), bob, main, attach.JoinOptions{Create: true, Cols: 40,
		Rows: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer driving.Close()
	if err := driving.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	conn, err := d.Relay.Open(w.Ctx(), bob, "demo", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if party, err = d.Sessions.Shared(w.Ctx(), bobsRobot, main,
		attach.JoinOptions{Create: true}); err != nil {
		t.Fatal(err)
	}
	if reply, err := party.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "true"}); err != nil || reply.Result.Error == nil || reply.Result.TakenOver == nil {
		t.Errorf("run while a person has the keyboard: %+v, %v", reply.Result, err)
	}
	for what, err := range owners(w.Ctx(), d, bob) {
		if !errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The owner takes the keyboard from a guest, who asks for it back.
	mine, err := d.Sessions.Join(w.Ctx(), alice, main, attach.JoinOptions{Create: true, Cols: 100,
		Rows: 30})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	if err := mine.Take(w.Ctx()); err != nil {
		t.Errorf("the owner takes it: %v", err)
	}
	w.Eventually("the guest knows", func() bool { return !driving.Holds() })
	wantCode(t, driving.Take(w.Ctx()), wire.CodeKeyboardHeld)
	if asked, err := driving.Ask(w.Ctx()); err != nil || asked != "person:alice" ||
		mine.Situation().Asking != "person:bob" {
		t.Errorf("asking: %q, %v", asked, err)
	}
	if err := mine.Give(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	w.Eventually("the guest has it back", func() bool { return driving.Holds() && !mine.Holds() })

	// The next daemon knows.
	d.End()
	d = w.Start()
	again, err := d.Sessions.Join(w.Ctx(), bob, main, attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	agents, err := d.Sessions.Shared(w.Ctx(), bobsRobot, main,
		attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if conn, err = d.Relay.Open(w.Ctx(), bob, "demo", nil); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := again.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}

	// And no more: at once, and as if it had never been.
	if was, err := d.Unshare(w.Ctx(), alice, "demo", "bob"); err != nil || !was {
		t.Fatalf("unshare: %t, %v", was, err)
	}
	for name, a := range map[string]*attach.Attachment{"person": again, "agent": agents} {
		if err := a.Err(); !errors.Is(err, interrupt.ErrUnshared) {
			t.Errorf("the %s: %v", name, err)
		}
	}
	if err := conn.Wait(); err == nil {
		t.Error("the relayed connection ended in order")
	}
	l, err := d.Sessions.Live(w.Ctx(), alice, main)
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("the keyboard is free", func() bool { return l.Keyboard() == "" })
	_, gone := d.Get(w.Ctx(), bob, "demo")
	_, never := d.Get(w.Ctx(), bob, "nothing")
	wantCode(t, gone, wire.CodeNotFound)
	if a, b := d.Public(gone), d.Public(never); a.Code != b.Code ||
		len(a.Message) != len(b.Message)-len("nothing")+len("demo") {
		t.Errorf("refused differently: %v, %v", a, b)
	}
	if was, err := d.Unshare(w.Ctx(), alice, "demo", "bob"); err != nil || was {
		t.Errorf("unshare again: %t, %v", was, err)
	}
	if got := d.Public(interrupt.ErrUnshared); got.Code != wire.CodeDenied {
		t.Errorf("a call that it cut off says %v", got)
	}
	// A sandbox that goes takes its shares with it.
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightDrive); err != nil {
		t.Fatal(err)
	}
	if err := d.Discard(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	if shares, err := d.Store.Shares(w.Ctx()); err != nil || len(shares) != 0 {
		t.Errorf("left in the store: %v, %v", shares, err)
	}
}

// A key that may only watch does nothing on the parties of its principal's other keys: neither on
// the person at a terminal, nor on the agent whose call is under way.
func TestWatchKeyBesideOthers(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	wall := gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightWatch}
	agent := w.Shared(d)
	if other, err := d.Sessions.Shared(w.Ctx(), wall, main, attach.JoinOptions{}); err != nil ||
		other == agent || agent.Err() != nil {
		t.Errorf("the agent's party: %v; the watcher's is the same: %t, %v", agent.Err(),
			other == agent, err)
	}
	if again, err := d.Sessions.Shared(w.Ctx(), robot, main, attach.JoinOptions{}); err != nil ||
		again != agent {
		t.Errorf("the agent is another party: %v", err)
	}

	person := w.Join(d, alice, main, attach.JoinOptions{Create: true, Cols: 80, Rows: 24})
	_, err := take(w.Ctx(), d, wall, main)
	wantCode(t, err, wire.CodeDenied)
	watching, err := d.Sessions.Own(w.Ctx(), wall, main)
	if err != nil {
		t.Fatal(err)
	}
	_, err = watching.Ask(w.Ctx())
	wantCode(t, err, wire.CodeDenied)
	if err := d.Sessions.Private(w.Ctx(), alice, main, true); err != nil {
		t.Fatal(err)
	}
	if err := d.Sessions.Private(w.Ctx(), wall, main, false); err == nil {
		t.Error("the watcher ended private mode")
	}
	wantCode(t, watching.Keep(w.Ctx()), wire.CodeDenied)
	_, _ = give(w.Ctx(), d, wall, main) // that of its own party, which has none
	if l := person.Live(); l.Keyboard() != "person:alice" || l.Private() != "person:alice" {
		t.Errorf("keyboard %q, private %q", l.Keyboard(), l.Private())
	}
}

// A mistyped name of a principal is an error and shares nothing. A principal that can no longer log
// in keeps its rights, or gets fewer.
func TestShareWithNobody(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	listed, certified := true, false
	w.Options.LogsIn = func(principal string) (bool, bool) {
		return listed && principal == "bob", certified && principal == "carl"
	}
	d := w.Start()
	w.Create(d, "demo")
	err := d.Share(w.Ctx(), alice, "demo", "bbo", wire.RightWatch)
	wantCode(t, err, wire.CodeUsage)
	if err == nil || !strings.Contains(err.Error(), "bbo") {
		t.Errorf("the refusal does not name it: %v", err)
	}
	wantCode(t, d.Share(w.Ctx(), alice, "demo", "carl", wire.RightWatch), wire.CodeUsage)
	certified = true
	for _, name := range []string{"bob", "carl"} {
		if err := d.Share(w.Ctx(), alice, "demo", name, wire.RightDrive); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	listed = false
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightWatch); err != nil {
		t.Errorf("less for who cannot log in any more: %v", err)
	}
	info, err := d.Get(w.Ctx(), alice, "demo")
	if want := []lifecycle.Share{{Principal: "bob", Rights: wire.RightWatch},
		{Principal: "carl", Rights: wire.RightDrive}}; err != nil || !slices.Equal(info.SharedWith,
		want) {
		t.Errorf("shared with %+v, %v, want %+v", info.SharedWith, err, want)
	}
}

// Who may only watch does not start a sandbox that is stopped, by whatever would join a session in
// it.
func TestWatcherStartsNothing(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightWatch); err != nil {
		t.Fatal(err)
	}
	if err := d.Stop(w.Ctx(), alice, "demo"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []gateway.Principal{bob, {Name: "alice", Kind: wire.Person,
		Rights: wire.RightWatch}} {
		_, err := d.Sessions.Join(w.Ctx(), p, main, attach.JoinOptions{Create: true, Cols: 80,
			Rows: 24})
		wantCode(t, err, wire.CodeNotFound)
		_, err = d.Sessions.Shared(w.Ctx(), p, main, attach.JoinOptions{})
		wantCode(t, err, wire.CodeNotFound)
		_, err = d.Sessions.Shared(w.Ctx(), p, main, attach.JoinOptions{Create: true})
		wantCode(t, err, wire.CodeDenied)
		_, err = take(w.Ctx(), d, p, main)
		wantCode(t, err, wire.CodeNotFound)
		_, served, err := w.dial(d, p, wire.Attach{Session: "main"}, wire.Handler{})
		wantCode(t, err, wire.CodeNotFound)
		<-served
		if got := w.State(d, "demo"); got != lifecycle.Stopped {
			t.Fatalf("the sandbox is %s", got)
		}
	}
	if _, err := d.Sessions.Join(w.Ctx(), alice, main,
		attach.JoinOptions{Watch: true}); err == nil || w.State(d, "demo") != lifecycle.Stopped {
		t.Errorf("watching one's own: %v, %s", err, w.State(d, "demo"))
	}
}

// Who reads the record of a sandbox reads no more of it when that is no longer shared; its owner
// does.
func TestUnshareEndsReading(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	agent := w.Shared(d)
	if _, err := agent.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "echo hello"}); err != nil {
		t.Fatal(err)
	}
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightWatch); err != nil {
		t.Fatal(err)
	}
	readers := make(map[string]*record.Reader)
	for _, p := range []gateway.Principal{alice, bob} {
		r, err := d.Sessions.OpenRecord(w.Ctx(), p, main, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := r.ReadAt(make([]byte, 1), 0); err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		readers[p.Name] = r
	}
	if _, err := d.Unshare(w.Ctx(), alice, "demo", "bob"); err != nil {
		t.Fatal(err)
	}
	if _, err := readers["bob"].ReadAt(make([]byte, 1), 1); !errors.Is(err, interrupt.ErrUnshared) {
		t.Errorf("bob: %v", err)
	}
	if _, err := readers["alice"].ReadAt(make([]byte, 1), 1); err != nil {
		t.Errorf("alice: %v", err)
	}
}

// What a principal ran is among the events also when its access has ended before the command.
func TestUnsharedCommandIsRecorded(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	if err := d.Share(w.Ctx(), alice, "demo", "bob", wire.RightDrive); err != nil {
		t.Fatal(err)
	}
	record := d.Relay.Recorder(bob, "demo")
	if _, err := d.Unshare(w.Ctx(), alice, "demo", "bob"); err != nil {
		t.Fatal(err)
	}
	record(gateway.ExecEvent{Command: "make it so", Exit: -1})
	events, err := d.Events(w.Ctx(), alice, "demo", 50)
	if err != nil || !slices.ContainsFunc(events, func(e store.Event) bool {
		return e.Kind == "exec" && strings.Contains(string(e.Data), "make it so")
	}) {
		t.Errorf("the command is not among the events: %v", err)
	}
}
