package session_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// traceOf returns the trace of a session, also as JSON.
func traceOf(t *testing.T, c *wire.Client) (trace track.Trace, text string) {
	t.Helper()
	reply, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbTrace})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(reply.Trace, &trace); err != nil {
		t.Fatalf("%v: %s", err, reply.Trace)
	}
	return trace, string(reply.Trace)
}

// asks replays a trace and reports whether a program wants input at its end.
func asks(t *testing.T, trace track.Trace) (last bool) {
	t.Helper()
	if err := track.Replay(trace, func(s track.Step) { last = s.Asks }); err != nil {
		t.Fatal(err)
	}
	return last
}

// TestTrace replays what a session saw of questions: the replay says the same, and the trace has no
// input.
func TestTrace(t *testing.T) {
	set := newSet(t, "/bin/bash")
	c := dial(t, set, wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		wire.Handler{})
	check := func(want bool) string {
		t.Helper()
		trace, text := traceOf(t, c)
		if got := asks(t, trace); got != want || track.Asks(trace.State) != want {
			t.Errorf("the replay asks: %t, the state %t, want %t:\n%s", got,
				track.Asks(trace.State), want, text)
		}
		return text
	}
	run(t, c, "true")
	check(false)
	do(t, c, wire.Request{Verb: wire.VerbRun, Text: "read -rsp 'pass''word? ' x"})
	if text := check(true); !strings.Contains(text, `"before":"password? "`) {
		t.Errorf("the trace does not have the question:\n%s", text)
	}
	do(t, c, wire.Request{Verb: wire.VerbType, Text: "hunter2"})
	do(t, c, wire.Request{Verb: wire.VerbRun, Text: "bash --norc"}) // a shell inside
	do(t, c, wire.Request{Verb: wire.VerbRun, Text: "cd /usr/share && cat"})
	check(true)
	do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"^C"}})
	do(t, c, wire.Request{Verb: wire.VerbRun, Text: "exit"})
	text := check(false)
	if strings.Contains(text, "hunter2") || strings.Contains(text, "/usr/share") ||
		strings.Contains(text, "alice") {
		t.Errorf("the trace has input, a directory or a name:\n%s", text)
	}
}

// TestTraceIsBounded checks that a trace that has lost its start replays to the same state.
func TestTraceIsBounded(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	c := dial(t, set, wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		wire.Handler{})
	for i := 0; ; i++ { // equal observations are merged, so their number depends on the time
		run(t, c, "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.002; done")
		if trace, _ := traceOf(t, c); len(trace.Seeds) > 0 || i > 1000 {
			break
		}
	}
	do(t, c, wire.Request{Verb: wire.VerbRun, Text: "cat"})
	trace, text := traceOf(t, c)
	if len(trace.Seeds) == 0 || len(text) > wire.MaxFrame/2 {
		t.Errorf("%d seeds, %d observations, %d bytes", len(trace.Seeds),
			len(trace.Observations), len(text))
	}
	if !asks(t, trace) {
		t.Error("the replay says that nothing asks")
	}
}

// TestTraceOfPrivateMode checks that a trace has nothing of private mode.
func TestTraceOfPrivateMode(t *testing.T) {
	t.Parallel()
	set := newSet(t, "/bin/bash")
	alice := dial(t, set, wire.Attach{Session: "main", Create: true, Party: agentParty("alice")},
		wire.Handler{})
	run(t, alice, "echo public")
	mine := newWatch()
	bob := dial(t, set, wire.Attach{Session: "main", Party: person("bob"), Quiet: true},
		mine.handler())
	setPrivate(t, bob, true)
	for _, c := range []*wire.Client{alice, bob} {
		_, err := c.Request(t.Context(), wire.Request{Verb: wire.VerbTrace})
		if !errors.Is(err, &wire.Error{Code: wire.CodeDenied}) {
			t.Errorf("in private mode: %v, want denied", err)
		}
	}
	if err := bob.Input(t.Context(),
		[]byte("bash -c 'read -p \"se\"\"cret-42? \" x; "+
			"exec sh -c \"echo \\$((40+2))gone; exec sleep 1\"' hun''ter2\r")); err != nil {
		t.Fatal(err)
	}
	do(t, bob, wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhaseWaiting}})
	if err := bob.Input(t.Context(), []byte("y\r")); err != nil {
		t.Fatal(err)
	}
	mine.text(t, "42gone") // by then, no program with private arguments is in the foreground
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbGive}); err != nil {
		t.Fatal(err)
	}
	do(t, alice, wire.Request{Verb: wire.VerbWait, Keyboard: true})
	do(t, alice, wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhasePrompt}})
	do(t, alice, wire.Request{Verb: wire.VerbRun, Text: "read -p 'public? ' x"})
	trace, text := traceOf(t, alice)
	private := func(word string) bool { return strings.Contains(text, word) }
	if slices.ContainsFunc([]string{"secret", "hunter2", "bob"}, private) ||
		!strings.Contains(text, "public? ") {
		t.Errorf("the trace:\n%s", text)
	}
	if !asks(t, trace) {
		t.Error("the replay says that nothing asks")
	}
}
