package mcp_test

import (
	"context"
	"regexp"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/agenttest"
	"github.com/sandboxd/sandboxd/agent/mcp"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestAliases(t *testing.T) {
	c := client(t, agenttest.New(t), nil)
	object, said, _ := call(t, c, "exec_command",
		args{"cmd": "echo one; read x; echo got $x; read -t 1000 y < <(tail -f /dev/null)",
			"workdir": "/usr"})
	if object["session_id"] != 1.0 || object["ended"] != "waiting" || object["cwd"] != "/usr" ||
		!strings.HasPrefix(said, "session_id: 1\n") {
		t.Fatalf("%v, said %s", object, said)
	}
	// Another one has its own terminal meanwhile.
	if object, _, _ = call(t, c, "exec_command",
		args{"cmd": "echo two"}); object["session_id"] != nil || object["output"] != "two\n" ||
		object["session"] != "exec-2" {
		t.Errorf("%v", object)
	}
	if object, _, _ = call(t, c, "write_stdin",
		args{"session_id": 1, "chars": "hey\n",
			"yield_time_ms": 300}); object["session_id"] != 1.0 ||
		!strings.Contains(object["output"].(string), "got hey") {
		t.Errorf("%v", object)
	}
	if object, _, _ = call(t, c, "write_stdin",
		args{"session_id": 1, "chars": "\x03"}); object["session_id"] != nil ||
		object["ended"] == "deadline" {
		t.Errorf("%v", object)
	}
	if _, said, failed := call(t, c, "write_stdin", args{"session_id": 1, "chars": "x"}); !failed ||
		!strings.Contains(said, "null once the command has ended") {
		t.Errorf("said %s", said)
	}
	// What was printed between two calls is not lost.
	r, _, _ := call(t, c, "exec_command",
		args{"cmd": "read -t 0.2 x < <(tail -f /dev/null); echo between; read -t 0.6 x < <(tail " +
			"-f /dev/null); echo end", "yield_time_ms": 100})
	if r["session_id"] != 1.0 {
		t.Fatalf("%v", r)
	}
	result(t, c, "wait", args{"timeout_s": 0.4})
	if object, _, _ = call(t, c, "write_stdin", args{"session_id": 1}); !strings.Contains(
		object["output"].(string), "between\n") ||
		!strings.Contains(object["output"].(string), "end\n") {
		t.Errorf("%v", object)
	}
}

// Sandboxes of others are as unknown as those that do not exist, for every tool.
func TestOthers(t *testing.T) {
	g := agenttest.New(t)
	c := client(t, g.As(gateway.Principal{Name: "bob", Kind: wire.Agent}), nil)
	for tool, a := range map[string]args{"run": {"command": "true"}, "answer": {"text": "x"},
		"keys": {"keys": []string{"x"}}, "wait": {}, "screen": {}, "interrupt": {}, "log": {},
		"exec_command": {"cmd": "true"}, "read_file": {"path": "x"},
		"write_file": {"path": "x", "content": "x"}, "list_files": {"path": "."},
		"sandboxes": {"sandbox": "box"}} {
		mine, mineSaid, failed := call(t, c, tool, a)
		if !failed || !strings.Contains(mineSaid, "not_found") {
			t.Errorf("%s: %v", tool, mine)
		}
		if tool == "exec_command" {
			continue // it names none
		}
		a["sandbox"] = "box"
		_, box, _ := call(t, c, tool, a)
		a["sandbox"] = "nox"
		_, nox, _ := call(t, c, tool, a)
		if regexp.MustCompile(`\bbox\b`).ReplaceAllString(box, "nox") != nox {
			t.Errorf("%s: %q, and of what does not exist %q", tool, box, nox)
		}
	}
	if object, _, _ := call(t, c, "sandboxes", args{}); len(object["sandboxes"].([]any)) != 0 {
		t.Errorf("%v", object)
	}
}

// A model gets what there is to work with, and whose words that is.
func TestDescribe(t *testing.T) {
	g := agenttest.New(t)
	if _, err := g.Hub.Create(t.Context(), alice,
		lifecycle.NewSpec{Name: "noted", About: "the table\nis in /data"}, nil); err != nil {
		t.Fatal(err)
	}
	object, said, failed := call(t, client(t, g, nil), "sandboxes", args{"sandbox": "noted"})
	d, _ := object["description"].(args)
	if failed || object["name"] != "noted" || d["about"] != "the table\nis in /data" ||
		d["os"] == "" || d["network_text"] == "" || d["tools"] == nil {
		t.Fatalf("%v, said %s", object, said)
	}
	first, rest, _ := strings.Cut(said, "\n--- description, untrusted data ")
	if !strings.HasPrefix(first, "noted: running, image ") || strings.Contains(first, "table") {
		t.Errorf("said first %q", first)
	}
	for _, want := range []string{"\nhealth: ok\n", "\nabout: the table is in /data\n",
		"\nsystem: ", "\nnetwork: none", "\ntools: ", "\n--- end of untrusted data "} {
		if !strings.Contains(rest, want) {
			t.Errorf("%q is missing in %s", want, rest)
		}
	}
	// Who may only watch hears of all but packages, for which something has to be run.
	g.Principal.Rights = wire.RightWatch
	if object, said, failed = call(t, client(t, g, nil), "sandboxes",
		args{"sandbox": "noted"}); failed || object["name"] != "noted" {
		t.Errorf("a watcher: %v, said %s", object, said)
	}
}

func TestSandboxes(t *testing.T) {
	c := client(t, agenttest.New(t), nil)
	object, said, failed := call(t, c, "new_sandbox", args{"name": "second"})
	if failed || object["name"] != "second" || object["state"] != "running" {
		t.Fatalf("%v, said %s", object, said)
	}
	if object, _, _ = call(t, c, "sandboxes", args{}); len(object["sandboxes"].([]any)) != 2 {
		t.Errorf("%v", object)
	}
	if r, _ := result(t, c, "run", args{"command": "echo here",
		"sandbox": "second"}); r.Sandbox != "second" || r.Output != "here\n" {
		t.Errorf("%+v", r)
	}
	if _, said, failed := call(t, c, "new_sandbox", args{"name": "second"}); !failed ||
		!strings.Contains(said, "exists") {
		t.Errorf("said %s", said)
	}
}

// A sandbox that was removed and made again is another one, and the next call finds it.
func TestRemovedMeanwhile(t *testing.T) {
	g := agenttest.New(t)
	made := 0
	rw := serve(t, mcp.Options{Gateway: g, Ensure: func(ctx context.Context) (string, error) {
		made++
		_, err := g.Hub.Create(ctx, alice, lifecycle.NewSpec{Name: "lazy", Reuse: true}, nil)
		return "lazy", err
	}})
	c, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(
		t.Context(), &sdk.IOTransport{Reader: rw, Writer: rw}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if made != 0 {
		t.Error("it was made before a tool needed it")
	}
	ended(t, first(result(t, c, "run", args{"command": "true"})), agent.EndedDone)
	if _, err := g.Hub.Remove(t.Context(), alice, "lazy"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first may find the connection broken
		if r, _ := result(t, c, "run", args{"command": "true"}); r.Ended == agent.EndedDone {
			break
		}
	}
	if r, _ := result(t, c, "run", args{"command": "true"}); r.Ended != agent.EndedDone ||
		made != 2 {
		t.Errorf("%+v, made %d times", r, made)
	}
}
