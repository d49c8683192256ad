package command

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Who finds a person at the keyboard is told of the flag that waits for it.
func TestHoldIsNamed(t *testing.T) {
	w := newWorld(t)
	if code, _, stderr := w.command("new", "demo"); code != 0 {
		t.Fatal(stderr)
	}
	person, err := w.hub.Join(t.Context(), alice, wire.Target{Sandbox: "demo"}, gateway.JoinOptions{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	if err := person.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"run -n demo -- true", "type -n demo x", "keys -n demo Enter"} {
		code, _, stderr := w.command(strings.Fields(line)...)
		if code != wire.ExitFailed || !strings.Contains(stderr, "person:alice holds the keyboard") || !strings.Contains(stderr, "--hold") {
			t.Errorf("%s: exit %d, %q", line, code, stderr)
		}
		args := strings.Fields(strings.Replace(line, "-n demo", "-n demo --json", 1))
		code, stdout, _ := w.command(args...)
		var res wire.Result
		if err := json.Unmarshal([]byte(stdout), &res); err != nil || code != wire.ExitFailed || res.Error == nil ||
			res.Error.Code != wire.CodeKeyboardHeld || !strings.Contains(res.Error.Hint, "--hold") {
			t.Errorf("%s: exit %d, %s, %v", strings.Join(args, " "), code, stdout, err)
		}
		// Who has said it already is not told again.
		args = strings.Fields(strings.Replace(line, "-n demo", "-n demo --hold --timeout 10ms", 1))
		if code, _, stderr := w.command(args...); code != wire.ExitFailed || strings.Contains(stderr, "--hold") {
			t.Errorf("%s: exit %d, %q", strings.Join(args, " "), code, stderr)
		}
	}
}
