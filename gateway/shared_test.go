package gateway_test

import (
	"errors"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Text for a program is not typed to a shell that was started since, in a session whose shell has
// ended either.
func TestTypeStartsNoShell(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	w.Create(d, "demo")
	a := w.Shared(d)
	if r, err := a.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "kill -9 $$"}); err != nil || r.Result.Phase != wire.PhaseDead {
		t.Fatalf("%+v, %v", r.Result, err)
	}
	for _, r := range []wire.Request{{Verb: wire.VerbType, Text: "echo secret"},
		{Verb: wire.VerbKeys, Keys: []string{"Enter"}}} {
		typist, err := d.Sessions.Shared(w.Ctx(), robot, main, attach.JoinOptions{Create: true,
			Typed: true})
		if err == nil {
			var reply wire.Reply
			reply, err = typist.Request(w.Ctx(), r)
			if err == nil {
				err = reply.Result.Error
			}
		}
		if !errors.Is(err, &wire.Error{Code: wire.CodeUnavailable}) {
			t.Errorf("%s: %v", r.Verb, err)
		}
	}
	b := w.Shared(d)
	if r, err := b.Request(w.Ctx(), wire.Request{Verb: wire.VerbRun,
		Text: "echo again"}); err != nil || r.Result.Output != "again\n" {
		t.Errorf("run: %+v, %v", r.Result, err)
	}
}

// A shell that a run has started again is known: what it asks is answered, also over another
// connection.
func TestTypeToTheShellThatRunStarted(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.Start()
	info := w.Create(d, "demo")
	a := w.Shared(d)
	do := func(r wire.Request) *wire.Result {
		t.Helper()
		reply, err := a.Request(w.Ctx(), r)
		if err != nil {
			t.Fatalf("%s %s: %v", r.Verb, r.Text, err)
		}
		return reply.Result
	}
	do(wire.Request{Verb: wire.VerbRun, Text: "exit"})
	if r := do(wire.Request{Verb: wire.VerbRun,
		Text: "read x; echo got $x"}); r.Ended != wire.Waiting {
		t.Fatalf("%+v", r)
	}
	w.cut(info) // the connection to the sandbox breaks
	if r := do(wire.Request{Verb: wire.VerbType, Text: "joe"}); r.Ended != wire.Done ||
		r.Output != "joe\ngot joe\n" {
		t.Errorf("%+v", r)
	}
}
