package record

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestCommands(t *testing.T) {
	w, dir := create(t, Options{})
	zero, one := 0, 1
	at := func(s string, e wire.Event) {
		t.Helper()
		appendAll(t, w, w.End(), s)
		if err := w.Event(e); err != nil {
			t.Fatal(err)
		}
	}
	prompt := wire.Event{Kind: wire.EventState,
		State: &wire.State{Phase: wire.PhasePrompt, Basis: []wire.Basis{}}}
	at("$ ", prompt) // 2
	at("false\r\n", wire.Event{Kind: wire.EventCommand, Op: "a", By: "agent:alice", Text: "false"})
	at("", wire.Event{Kind: wire.EventBegun, Op: "a"})   // 9
	at("out", wire.Event{Kind: wire.EventOver, Op: "a"}) // 12
	at("$ ", wire.Event{Kind: wire.EventResult, Op: "a", ExitCode: &one, Why: wire.Done})
	at("", prompt) // 14
	at("", wire.Event{Kind: wire.EventInput, By: "person:bob", Bytes: 3})
	at("ls\r\n", wire.Event{Kind: wire.EventBegun})                  // 18
	at("file\r\n", wire.Event{Kind: wire.EventOver, ExitCode: &one}) // 24
	at("$ ", prompt)                                                 // 26
	// A command without output ends where it ended, not behind the next prompt.
	at("true\r\n", wire.Event{Kind: wire.EventCommand, Op: "b", By: "agent:alice", Text: "true"})
	at("", wire.Event{Kind: wire.EventBegun, Op: "b"}) // 32
	at("", wire.Event{Kind: wire.EventOver, Op: "b"})
	at("$ ", wire.Event{Kind: wire.EventResult, Op: "b", ExitCode: &zero, Why: wire.Done})
	at("", prompt)                                                         // 34
	at("sleep 9\r\n", wire.Event{Kind: wire.EventBegun, By: "person:eve"}) // 43
	appendAll(t, w, w.End(), "zzz")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := []Command{
		{Op: "a", By: "agent:alice", Text: "false", Line: [2]uint64{2, 9}, From: 9, To: 12, Why: wire.Done, Exit: &one},
		{By: "person:bob", Line: [2]uint64{14, 18}, From: 18, To: 24, Why: wire.Done, Exit: &one},
		{Op: "b", By: "agent:alice", Text: "true", Line: [2]uint64{26, 32}, From: 32, To: 32,
			Why: wire.Done, Exit: &zero},
		{By: "person:eve", Line: [2]uint64{34, 43}, From: 43, To: 46},
	}
	got := r.Commands()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Command{}, "Started",
		"Ended")); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	for i, over := range []bool{true, true, true, false} {
		if i < len(got) && (got[i].Ended != 0) != over {
			t.Errorf("command %d: over is %v, want %v", i, !over, over)
		}
	}
}

// A command that starts a shell lasts while others run in that.
func TestCommandsInside(t *testing.T) {
	w, dir := create(t, Options{})
	zero, three := 0, 3
	at := func(s string, e wire.Event) {
		t.Helper()
		appendAll(t, w, w.End(), s)
		if err := w.Event(e); err != nil {
			t.Fatal(err)
		}
	}
	prompt := wire.Event{Kind: wire.EventState,
		State: &wire.State{Phase: wire.PhasePrompt, Basis: []wire.Basis{}}}
	at("$ ", prompt)                                                                     // 2
	at("bash\r\n", wire.Event{Kind: wire.EventCommand, Op: "a", By: "me", Text: "bash"}) // 8
	at("", wire.Event{Kind: wire.EventBegun, Op: "a"})
	at("> ", prompt)                                                                     // 10
	at("true\r\n", wire.Event{Kind: wire.EventCommand, Op: "b", By: "me", Text: "true"}) // 16
	at("", wire.Event{Kind: wire.EventBegun, Op: "b"})
	at("", wire.Event{Kind: wire.EventOver, Op: "b"})
	at("> ", wire.Event{Kind: wire.EventResult, Op: "b", ExitCode: &zero, Why: wire.Done}) // 18
	at("^D\r\n", wire.Event{Kind: wire.EventOver, Op: "a"})                                // 22
	at("$ ", wire.Event{Kind: wire.EventResult, Op: "a", ExitCode: &three, Why: wire.Done})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := []Command{
		{Op: "a", By: "me", Text: "bash", Line: [2]uint64{2, 8}, From: 8, To: 22, Why: wire.Done,
			Exit: &three},
		{Op: "b", By: "me", Text: "true", Line: [2]uint64{10, 16}, From: 16, To: 16, Why: wire.Done,
			Exit: &zero},
	}
	if diff := cmp.Diff(want, r.Commands(), cmpopts.IgnoreFields(Command{}, "Started",
		"Ended")); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
}
