package sshd

import (
	"fmt"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for _, want := range []int{0, 1, 2, 7, 126, 127, 130, 137, 255} {
		if got := outcome(t, w.ssh("alice", "demo@127.0.0.1", fmt.Sprintf("exit %d", want)),
			""); got != (result{exit: want}) {
			t.Errorf("exit %d: got %+v", want, got)
		}
	}
	// A signal is sent as exit-signal; the OpenSSH client exits with 255.
	if got := outcome(t, w.ssh("alice", "demo@127.0.0.1", "kill -TERM $$"), ""); got.exit != 255 ||
		got.stdout != "" {
		t.Errorf("killed: got %+v", got)
	}
	got := outcome(t, w.ssh("alice", "-tt", "demo@127.0.0.1", "exit 7"), "")
	if got.exit != 7 || got.stdout != "" {
		t.Errorf("-tt exit 7: got %+v", got)
	}
}

// Standard output and error are separate and unchanged, with EOF in each direction.
func TestStreams(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	got := outcome(t, w.ssh("alice", "demo@127.0.0.1", "cat; echo done; echo wrong >&2"), "x\n")
	if want := (result{stdout: "x\ndone\n", stderr: "wrong\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// A shell without a terminal, as VS Code starts one.
	got = outcome(t, w.ssh("alice", "-T", "demo@127.0.0.1"), "echo $0; exit 3\n")
	if got.exit != 3 || !strings.HasSuffix(got.stdout, "sh\n") || got.stderr != "" {
		t.Errorf("shell: got %+v", got)
	}
}
