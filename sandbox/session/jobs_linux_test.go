package session_test

import (
	"slices"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestBackgroundJobs runs commands while a background job prints or does not.
func TestBackgroundJobs(t *testing.T) {
	c := agentClient(t, newSet(t, "/bin/bash"))
	noted := func(command string) bool {
		t.Helper()
		res := run(t, c, command)
		if res.Ended != wire.Done {
			t.Fatalf("%q: %s", command, res.Ended)
		}
		return slices.Contains(res.Notes, wire.NoteBackgroundJobs)
	}
	if noted("echo alone") {
		t.Error("noted without a job")
	}
	if noted(
		"mkfifo f; (exec 3<>f; while read -r line <&3; do echo $line; : >seen; done) & (while :; " +
			"do sleep 0.01; echo x; done) >log 2>&1 & until [ -s log ]; do sleep 0.01; done",
	) {
		t.Error("noted of a job that the command itself began")
	}
	for range 2 {
		if noted("echo quiet") {
			t.Error("noted of jobs that print nothing, or elsewhere")
		}
		if !noted(
			"rm -f seen; echo of the job >f; while [ ! -e seen ]; do sleep 0.01; done; echo own",
		) {
			t.Error("not noted of a job that printed")
		}
	}
	if !noted("kill %1; wait %1; echo over") {
		t.Error("not noted of a job that has ended and may have printed")
	}
	if noted("echo quiet") {
		t.Error("noted of a job that had ended before")
	}
	asks := "(until [ -e go ]; do sleep 0.01; done; echo late; : >said) & read -p 'Name? ' x; : " +
		">go; until [ -e said ]; do sleep 0.01; done"
	res := run(t, c, asks)
	if res.Ended != wire.Waiting || slices.Contains(res.Notes, wire.NoteBackgroundJobs) {
		t.Errorf("the question: %s, notes %q", res.Ended, res.Notes)
	}
	if res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "bob"}); res.Ended != wire.Done ||
		!slices.Contains(res.Notes, wire.NoteBackgroundJobs) {
		t.Errorf("the answer: %s, notes %q, output %q", res.Ended, res.Notes, res.Output)
	}
	run(t, c, "kill $(jobs -p)")
}
