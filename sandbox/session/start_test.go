package session_test

import (
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
