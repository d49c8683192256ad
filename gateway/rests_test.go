package gateway_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An agent of the command table is there while a call of it is under way, or while it holds the
// keyboard, and not after that.
func TestSharedAttachmentRests(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	w.Run(d, "true")
	person := w.Join(d, alice, wire.Target{Sandbox: "demo", Session: wire.DefaultSession},
		attach.JoinOptions{})
	l := person.Live()
	if got := l.Situation(person.Party()).Others; got != 0 {
		t.Errorf("%d others are there after the agent's call", got)
	}
	if diff := cmp.Diff([]string{"person:alice"}, names(l.Parties())); diff != "" {
		t.Errorf("parties after the agent's call (-want +got):\n%s", diff)
	}
	party, err := d.Sessions.Shared(w.Ctx(), robot, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.types(person, "read x\n")
	gen := l.Generation()
	over := make(chan error, 1)
	ctx, leave := context.WithCancel(w.Ctx())
	go func() {
		_, err := party.Request(ctx, wire.Request{Verb: wire.VerbWait,
			For: []wire.Phase{wire.PhasePrompt}, TimeoutMS: -1})
		over <- err
	}()
	w.Eventually("it is there during a call, and that is reported", func() bool {
		return l.Situation(person.Party()).Others == 1 && l.Generation() != gen
	})
	gen = l.Generation()
	leave()
	<-over
	if got := l.Situation(person.Party()).Others; got != 0 || l.Generation() == gen {
		t.Errorf("%d others are there after it", got)
	}
	w.types(person, "\n")
	if err := person.Give(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	if err := party.Take(w.Ctx()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"agent:alice", "person:alice"}, names(l.Parties())); diff != "" {
		t.Errorf("parties while the agent has the keyboard (-want +got):\n%s", diff)
	}
}
