package command

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// wait --for matches output from before and after the wait starts.
func TestWaitForPattern(t *testing.T) {
	w := newWorld(t)
	run := func(want int, args ...string) wire.Result {
		t.Helper()
		code, stdout, stderr := w.command(args...)
		var res wire.Result
		if code != want {
			t.Fatalf("%q: %d, want %d: %s%s", args, code, want, stdout, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &res); err != nil {
			t.Fatalf("%q: %v: %s", args, err, stdout)
		}
		return res
	}
	if code, _, stderr := w.command("new", "demo"); code != 0 {
		t.Fatal(stderr)
	}
	server := "cd; echo early 1; until [ -e go ]; do sleep 0.05; done; echo listening on port " +
		"80; sleep 1000"
	first := run(wire.ExitDeadline, "run", "-n", "demo", "--json", "--timeout", "2s", "--", server)

	res := run(0, "wait", "demo", "--json", "--for", "early [0-9]")
	if res.Ended != wire.Matched || res.Phase != wire.PhaseRunning ||
		strings.TrimSpace(res.Output) != "early 1" || res.From != first.From {
		t.Errorf("what was printed before: %+v", res)
	}
	res = run(wire.ExitDeadline, "wait", "demo", "--json", "--timeout", "500ms", "--for",
		"early [0-9]", "--from", strconv.FormatUint(res.To, 10))
	if res.Ended != wire.Deadline {
		t.Errorf("what was printed before --from: %+v", res)
	}

	w.command("exec", "demo", "cd; touch go")
	res = run(0, "wait", "demo", "--json", "--for", `listening on port (\d+)\r\n`)
	if !strings.HasSuffix(res.Output, "listening on port 80\n") || res.To <= first.To {
		t.Errorf("what was printed after: %+v", res)
	}

	w.command("interrupt", "demo")
	// the next call starts before it is done
	run(wire.ExitDeadline, "run", "-n", "demo", "--json", "--timeout", "100ms", "--", "sleep 5")
	if res = run(exitNotPrinted, "wait", "demo", "--json", "--for",
		"no such text"); res.Ended != wire.Done {
		t.Errorf("a program that ended: %+v", res)
	}
	res = run(wire.ExitDeadline, "wait", "demo", "--json", "--timeout", "500ms", "--for",
		"no such text")
	if res.Ended != wire.Deadline || res.Phase != wire.PhasePrompt {
		t.Errorf("at the prompt: %+v", res)
	}
	if code, stdout, stderr := w.command("wait", "demo", "--for", `\(nothing\)|port 8`, "--from",
		strconv.FormatUint(first.From, 10)); code != 0 || !strings.HasSuffix(stdout, "port 8\n") {
		t.Errorf("without --json: %d, %q, %s", code, stdout, stderr)
	}
}

func TestWaitForIsRead(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct{ args, says string }{
		{"--for ready", "write '(ready)'"},
		{"--for prompt,ready", "write '(ready)'"},
		{"--for (", "missing closing"},
		{"--for keyboard,prompt", "cannot be combined"},
		{"--for prompt --for a.*b", "cannot be combined"},
		{"--for A.* --for B.*", "A|B"},
		{"--from 3", "--from: needs --for"},
	} {
		code, _, stderr := w.command(append([]string{"wait", "demo"},
			strings.Fields(tt.args)...)...)
		if code != wire.ExitUsage || !strings.Contains(stderr, tt.says) {
			t.Errorf("%s: %d, %s, want %q", tt.args, code, stderr, tt.says)
		}
	}
}
