package session_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestRunWhileShellStarts checks that a command that times out before the shell has started does
// not run, and that the error says why.
func TestRunWhileShellStarts(t *testing.T) {
	c := agentClient(t, newRCSet(t, "while [ ! -e go ]; do read -t 0.05 <> <(:); done\nPS1='$ '"))
	res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo ran >ran", TimeoutMS: 200})
	if res.Ended != wire.Refused || res.Error == nil || res.Error.Code != wire.CodeNotPrompt ||
		!strings.Contains(res.Error.Message, "the start of the shell runs") {
		t.Fatalf("%+v, %+v", res, res.Error)
	}
}

// TestInterruptedStart starts a shell that does not read the script of the marks, as bash after ^C
// in its start-up files. The next command runs in another one.
func TestInterruptedStart(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\nif mkdir " + dir + "/first 2>/dev/null; then\n" +
		"exec /bin/bash --norc -i\nfi\nexec /bin/bash \"$@\"\n"
	if err := os.WriteFile(dir+"/bash", []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c := agentClient(t, newSet(t, dir+"/bash"))
	res := do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo no", TimeoutMS: 10_000})
	if res.Ended != wire.Refused || res.Error.Code != wire.CodeNotPrompt {
		t.Fatalf("without ^C: %+v, %v", res, res.Error)
	}
	do(t, c, wire.Request{Verb: wire.VerbInterrupt})
	res = run(t, c, "echo yes")
	if res.Ended != wire.Done || res.Output != "yes\n" ||
		!slices.Contains(res.Notes, wire.NoteShellRestarted) {
		t.Errorf("after ^C: %+v, %v", res, res.Error)
	}
}
