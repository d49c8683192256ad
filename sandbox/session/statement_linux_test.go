package session_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestStatements has a listening program state that it works or asks, contrary to what its output
// looks like.
func TestStatements(t *testing.T) {
	t.Parallel()
	c := agentClient(t, newSet(t, "/bin/bash"))
	say := func(status string) string { return `printf '\033]7501;state=` + status + `\007'; ` }
	const (
		still  = "read -rsn1 -t 60 x"
		blinks = `while ! read -rsn1 -t 0.1 x; do printf '.\r'; done`
	)
	for _, tt := range []struct {
		name, command string
		timeout       int64
		ended         wire.Ended
	}{
		{"still", still, 60_000, wire.Attention},
		{"blinks", blinks, 2_000, wire.Deadline},
		{"works, and is still", say("working") + still, 3_000, wire.Deadline},
		{"still, where the one before worked", still, 60_000, wire.Attention},
		{"asks, and blinks", say("blocked:kind=permission") + blinks, 60_000, wire.Attention},
		{"blinks, where the one before asked", blinks, 2_000, wire.Deadline},
		{"worked, and is done", say("working") + say("done") + blinks, 60_000, wire.Attention},
		{"takes it back", say("working") + say("clear") + still, 60_000, wire.Attention},
	} {
		res := do(
			t,
			c,
			wire.Request{
				Verb:      wire.VerbRun,
				Text:      "bash -c " + "'" + strings.ReplaceAll(tt.command, "'", `'\''`) + "'",
				TimeoutMS: tt.timeout,
			},
		)
		if res.Ended != tt.ended || res.Phase != wire.PhaseRunning {
			t.Errorf("%s: ended %s in phase %s, want %s", tt.name, res.Ended, res.Phase, tt.ended)
		}
		if res := do(t, c, wire.Request{Verb: wire.VerbInterrupt}); res.Phase != wire.PhasePrompt {
			t.Fatalf("%s: interrupted: %s, %s, %+v", tt.name, res.Ended, res.Phase, res.Receipt)
		}
	}
}

// TestTypingIsNoRest types to a program at rest that answers late and still listens. Until it
// answers, it does not count as at rest again.
func TestTypingIsNoRest(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			t.Fatal("python3 is not on this machine; scripts/setup test installs it")
		}
		t.Skip("python3 is not on this machine")
	}
	c := agentClient(t, newSet(t, "/bin/bash"))
	const program = `python3 -c '
import os, select, threading, tty
tty.setraw(0)
while select.select([0], [], [], 60):
    key = os.read(0, 1)
    threading.Timer(0.3, os.write, (1, b"<" + key + b">")).start()
'`
	if res := do(t, c, wire.Request{Verb: wire.VerbRun,
		Text: program}); res.Ended != wire.Attention {
		t.Fatalf("ended %s in phase %s, want attention", res.Ended, res.Phase)
	}
	for _, key := range []string{"a", "b", "c"} {
		res := do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{key}})
		if want := "<" + key + ">"; res.Ended != wire.Attention ||
			!strings.Contains(res.Output, want) {
			t.Errorf(
				"key %s: ended %s with output %q, want attention with %q",
				key,
				res.Ended,
				res.Output,
				want,
			)
		}
	}
}
