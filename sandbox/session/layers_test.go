package session_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// without starts a session whose states go without some layers.
func without(t *testing.T, set *session.Set, layers ...wire.Basis) *wire.Client {
	t.Helper()
	return dial(t, set, wire.Attach{Session: "new", Fresh: true, Party: agentParty("alice"), Start: &wire.Start{Without: layers}}, wire.Handler{})
}

// TestWithout switches layers off: what the others know is still told, and only they are named.
func TestWithout(t *testing.T) {
	set := newSet(t, "/bin/bash")
	t.Run("process", func(t *testing.T) {
		c := without(t, set, wire.BasisProcess)
		res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo hi; (exit 3)"})
		if res.Ended != wire.Done || res.ExitCode == nil || *res.ExitCode != 3 || res.Output != "hi\n" || !slices.Equal(res.Basis, []wire.Basis{wire.BasisMark}) {
			t.Errorf("got %+v, want a prompt by its mark alone", res)
		}
	})
	t.Run("mark", func(t *testing.T) {
		c := without(t, set, wire.BasisMark)
		res := do(t, c, wire.Request{Verb: wire.VerbWait})
		if res.Ended != wire.Waiting || res.Want != wire.WantRaw || !slices.Equal(res.Basis, []wire.Basis{wire.BasisProcess}) {
			t.Errorf("got %+v, want a shell that waits, by process facts alone", res)
		}
		res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "read x"})
		if res.Ended != wire.Waiting || res.Want != wire.WantLine || !slices.Equal(res.Basis, []wire.Basis{wire.BasisProcess}) {
			t.Errorf("got %+v, want a question", res)
		}
		res = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "true"})
		if res.Ended != wire.Refused || res.Error == nil || res.Error.Code != wire.CodeUnavailable {
			t.Errorf("got %+v, want a refusal: nobody would know when the command ends", res)
		}
	})
	t.Run("unknown", func(t *testing.T) {
		_, err := tryDial(t, set, wire.Attach{Session: "new", Fresh: true, Party: agentParty("alice"), Start: &wire.Start{Without: []wire.Basis{"exit"}}}, wire.Handler{})
		if e := refusal(err); e == nil || e.Code != wire.CodeUsage {
			t.Errorf("got %v, want a usage error", err)
		}
	})
}

func refusal(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}
