package gateway

import (
	"errors"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A standing party that nobody has used for long is let go, but never under a call, however long that takes.
func TestStandingStaysForItsCalls(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	expire := func() {
		s := &d.standing
		s.mu.Lock()
		for _, st := range s.all {
			st.used = time.Now().Add(-2 * idleStanding)
		}
		s.mu.Unlock()
		s.expire()
	}
	if _, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "read x"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbGive}); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhasePrompt}, TimeoutMS: -1})
		waited <- err
	}()
	w.eventually("it waits", func() bool { return a.calls.Load() == 1 })
	expire()
	person := w.person(d)
	w.types(person, "\r")
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if err := a.Err(); err != nil {
		t.Errorf("it was ended under its call: %v", err)
	}
	expire()
	if a.Err() == nil {
		t.Error("unused, it is still there")
	}
}

// Text for a program is not typed to a shell that was started since, in a session whose shell has ended either.
func TestTypeStartsNoShell(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	if r, err := a.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "kill -9 $$"}); err != nil || r.Result.Phase != wire.PhaseDead {
		t.Fatalf("%+v, %v", r.Result, err)
	}
	for _, r := range []wire.Request{{Verb: wire.VerbType, Text: "echo secret"}, {Verb: wire.VerbKeys, Keys: []string{"Enter"}}} {
		typist, err := d.Standing(w.ctx(), robot, main, JoinOptions{Create: true, Typed: true})
		if err == nil {
			var reply wire.Reply
			reply, err = typist.Request(w.ctx(), r)
			if err == nil {
				err = reply.Result.Error
			}
		}
		if !errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) {
			t.Errorf("%s: %v", r.Verb, err)
		}
	}
	b := w.standing(d)
	if r, err := b.Request(w.ctx(), wire.Request{Verb: wire.VerbRun, Text: "echo again"}); err != nil || r.Result.Output != "again\n" {
		t.Errorf("run: %+v, %v", r.Result, err)
	}
}

// A shell that a run has started again is known: what it asks is answered, also over another connection.
func TestTypeToTheShellThatRunStarted(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	a := w.standing(d)
	do := func(r wire.Request) *wire.Result {
		t.Helper()
		reply, err := a.Request(w.ctx(), r)
		if err != nil {
			t.Fatalf("%s %s: %v", r.Verb, r.Text, err)
		}
		return reply.Result
	}
	do(wire.Request{Verb: wire.VerbRun, Text: "exit"})
	if r := do(wire.Request{Verb: wire.VerbRun, Text: "read x; echo got $x"}); r.Ended != wire.Waiting {
		t.Fatalf("%+v", r)
	}
	a.mu.Lock()
	client := a.client
	a.mu.Unlock()
	client.Close() // as when the connection to the sandbox breaks
	if r := do(wire.Request{Verb: wire.VerbType, Text: "joe"}); r.Ended != wire.Done || r.Output != "joe\ngot joe\n" {
		t.Errorf("%+v", r)
	}
}
