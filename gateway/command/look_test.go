package command

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// Read-only commands do not start a stopped sandbox, and print its last state.
func TestLookingStartsNothing(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"new", "demo"}, {"run", "-n", "demo", "--", "echo", "seen"},
		{"stop", "demo"}} {
		if code, _, stderr := w.command(args...); code != 0 {
			t.Fatalf("%v: %d, %s", args, code, stderr)
		}
	}
	for _, tt := range []struct {
		command      string
		code         int
		stdout, said string
	}{
		{"screen demo", 0, "seen", "demo is stopped: this is the last screen"},
		{"screen --json demo", 0, `"stopped":true`, ""},
		{"screen demo~other", 125, "", "no record of session other"},
		{"log demo", 0, "seen", ""},
		{"replay demo", 0, "seen", ""},
		{"sessions demo", 0, "SESSION", ""},
		{"wait demo", 125, "", "demo is stopped; start it: sandboxd start demo"},
		{"wait --json demo", 125, "sandbox demo is stopped", ""},
		{"take demo", 125, "", "which is stopped; start it: sandboxd start demo"},
		{"interrupt demo", 125, "", "which is stopped"},
		{"describe demo", 0, "stopped", ""},
	} {
		code, stdout, stderr := w.command(strings.Fields(tt.command)...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) ||
			!strings.Contains(stderr, tt.said) {
			t.Errorf("%s: %d, %q, %q", tt.command, code, stdout, stderr)
		}
		if info, err := w.hub.Get(t.Context(), alice, "demo"); err != nil ||
			info.State != lifecycle.Stopped {
			t.Fatalf("after %s it is %s, %v", tt.command, info.State, err)
		}
	}
}
