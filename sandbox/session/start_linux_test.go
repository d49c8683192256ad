package session_test

import (
	"fmt"
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
// in its start-up files. The next command runs in another one, unless the shell was used meanwhile.
func TestInterruptedStart(t *testing.T) {
	for _, used := range []bool{false, true} {
		t.Run(fmt.Sprintf("used %v", used), func(t *testing.T) { interruptedStart(t, used) })
	}
}

func interruptedStart(t *testing.T, used bool) {
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
	if used {
		do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"k", "=", "1", "Enter"},
			TimeoutMS: 5000})
	}
	do(t, c, wire.Request{Verb: wire.VerbKeys, Keys: []string{"^C"}, TimeoutMS: 5000})
	if used {
		res = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "echo no", TimeoutMS: 10_000})
		if res.Ended != wire.Refused || res.Error.Code != wire.CodeNotPrompt {
			t.Errorf("run: %+v, %v", res, res.Error)
		}
		res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "echo is $k", TimeoutMS: 5000})
		if !strings.Contains(res.Output, "is 1") {
			t.Errorf("the shell has lost what was typed: %+v, %v", res, res.Error)
		}
		return
	}
	res = run(t, c, "echo yes")
	if res.Ended != wire.Done || res.Output != "yes\n" ||
		!slices.Contains(res.Notes, wire.NoteShellRestarted) {
		t.Errorf("after ^C: %+v, %v", res, res.Error)
	}
}
