package mcp_test

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/agenttest"
)

// Read-only tools start no stopped sandbox and no session.
func TestReadingStartsNothing(t *testing.T) {
	g := agenttest.New(t)
	c := client(t, g, nil)
	r, _ := result(t, c, "run", args{"command": "echo seen"})
	ended(t, r, agent.EndedDone)
	if _, said, failed := call(t, c, "wait", args{"session": "other"}); !failed ||
		!strings.Contains(said, "no session other") {
		t.Errorf("wait for a session that is not there: %s", said)
	}
	if _, err := g.Command(t.Context(), nil, "stop", "box"); err != nil {
		t.Fatal(err)
	}
	for tool, want := range map[string]string{"screen": "its last screen", "log": "seen",
		"wait": "no session main"} {
		if _, said, failed := call(t, c, tool, args{}); !strings.Contains(said, want) ||
			failed != (tool == "wait") {
			t.Errorf("%s: %s", tool, said)
		}
		out, err := g.Command(t.Context(), nil, "describe", "--json", "box")
		if err != nil || !strings.Contains(string(out), `"state":"stopped"`) {
			t.Fatalf("after %s it is not stopped: %s, %v", tool, out, err)
		}
	}
}

// Input for a running program starts no sandbox: a new shell would run it as a command.
func TestTypingStartsNothing(t *testing.T) {
	g := agenttest.New(t)
	for tool, in := range map[string]args{"keys": {"keys": []string{"Up", "Enter"}},
		"answer": {"text": "secret"}, "interrupt": {}} {
		for _, attached := range []bool{true, false} {
			c := client(t, g, nil)
			r, _ := result(t, c, "run", args{"command": "echo seen"})
			ended(t, r, agent.EndedDone)
			if !attached {
				c = client(t, g, nil)
			}
			if _, err := g.Command(t.Context(), nil, "stop", "box"); err != nil {
				t.Fatal(err)
			}
			// The first call may be sent before its connection ends. The next one reconnects.
			for i := range 2 {
				_, said, _ := call(t, c, tool, in)
				late := attached && i == 0 && strings.Contains(said, "lost, it may have run: ")
				if !late && !strings.Contains(said, "refused, nothing was done") ||
					strings.Contains(said, "internal") {
					t.Errorf("%s: %s", tool, said)
				}
			}
			out, err := g.Command(t.Context(), nil, "describe", "--json", "box")
			if err != nil || !strings.Contains(string(out), `"state":"stopped"`) {
				t.Fatalf("after %s it is not stopped: %s, %v", tool, out, err)
			}
		}
	}
}
