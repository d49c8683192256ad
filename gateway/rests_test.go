package gateway

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// An agent of the command table is there while a call of it is under way, or while it holds the keyboard, and not after that.
func TestStandingPartyRests(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	w.run(d, "true")
	person := w.join(d, alice, wire.Target{Sandbox: "demo", Session: wire.DefaultSession}, JoinOptions{})
	l := person.Live()
	if got := l.Situation(person.Party()).Others; got != 0 {
		t.Errorf("%d others are there after the agent's call", got)
	}
	if diff := cmp.Diff([]string{"person:alice"}, names(l.Parties())); diff != "" {
		t.Errorf("parties after the agent's call (-want +got):\n%s", diff)
	}
	party, err := d.Standing(w.ctx(), robot, wire.Target{Sandbox: "demo"}, JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gen := l.Generation()
	over := party.calling()
	if got := l.Situation(person.Party()).Others; got != 1 || l.Generation() == gen {
		t.Errorf("%d others are there during a call", got)
	}
	gen = l.Generation()
	over()
	if got := l.Situation(person.Party()).Others; got != 0 || l.Generation() == gen {
		t.Errorf("%d others are there after it", got)
	}
	if err := party.Take(w.ctx()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"agent:alice", "person:alice"}, names(l.Parties())); diff != "" {
		t.Errorf("parties while the agent has the keyboard (-want +got):\n%s", diff)
	}
}
