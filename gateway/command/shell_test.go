package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A call that fails because a user holds the keyboard suggests --hold.
func TestHoldIsNamed(t *testing.T) {
	w := newWorld(t)
	if code, _, stderr := w.command("new", "demo"); code != 0 {
		t.Fatal(stderr)
	}
	person, err := w.hub.Sessions.Join(t.Context(), alice, wire.Target{Sandbox: "demo"},
		attach.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	if err := person.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"run -n demo -- true", "type -n demo x", "keys -n demo Enter"} {
		code, _, stderr := w.command(strings.Fields(line)...)
		if code != wire.ExitFailed || !strings.Contains(stderr,
			"person:alice holds the keyboard") || !strings.Contains(stderr, "--hold") {
			t.Errorf("%s: exit %d, %q", line, code, stderr)
		}
		args := strings.Fields(strings.Replace(line, "-n demo", "-n demo --json", 1))
		code, stdout, _ := w.command(args...)
		var res wire.Result
		if err := json.Unmarshal([]byte(stdout), &res); err != nil || code != wire.ExitFailed ||
			res.Error == nil ||
			res.Error.Code != wire.CodeKeyboardHeld || !strings.Contains(res.Error.Hint, "--hold") {
			t.Errorf("%s: exit %d, %s, %v", strings.Join(args, " "), code, stdout, err)
		}
		// a call with --hold gets no such hint
		args = strings.Fields(strings.Replace(line, "-n demo", "-n demo --hold --timeout 10ms", 1))
		if code, _, stderr := w.command(args...); code != wire.ExitFailed ||
			strings.Contains(stderr, "--hold") {
			t.Errorf("%s: exit %d, %q", strings.Join(args, " "), code, stderr)
		}
	}
}

// type --stdin keeps a secret out of the arguments, and a password prompt suggests it.
func TestTypeFromStandardInput(t *testing.T) {
	w := newWorld(t)
	w.must(0, "new", "demo")
	code, _, stderr := w.command("run", "-n", "demo", "--",
		"stty -echo; read -p 'Pass''word: ' x; stty echo; echo got ${#x}")
	if code != wire.ExitWaiting || !strings.Contains(stderr, "waits for a password: Password:") ||
		!strings.Contains(stderr, "sandboxd type -n demo --stdin <FILE") {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	for text, want := range map[string]string{"": "standard input is empty",
		strings.Repeat("x", maxTyped+2): "longer than"} {
		if code, _, stderr := w.typed(text, "type", "-n", "demo",
			"--stdin"); code != wire.ExitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%.10q: exit %d, %q", text, code, stderr)
		}
	}
	if code, _, stderr := w.typed("x\n", "type", "-n", "demo", "--stdin",
		"y"); code != wire.ExitUsage {
		t.Errorf("both: exit %d, %q", code, stderr)
	}
	if code, stdout, stderr := w.typed("correct horse\nsecond\n", "type", "-n", "demo",
		"--stdin"); code != 0 || !strings.Contains(stdout, "got 13") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}
