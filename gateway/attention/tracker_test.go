package attention

import (
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestOf(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, tt := range []struct {
		what string
		name string
		argv []string
		st   wire.State
		want Kind
	}{
		{"prompt", "main", nil, wire.State{Phase: wire.PhasePrompt}, None},
		{"running", "main", nil, wire.State{Phase: wire.PhaseRunning}, None},
		{"listening", "main", nil, wire.State{Phase: wire.PhaseRunning, Listens: true, Attention: "no"}, None},
		{"at rest", "main", nil, wire.State{Phase: wire.PhaseRunning, Listens: true, Attention: "likely"}, Rest},
		{"opaque", "main", nil, wire.State{Phase: wire.PhaseOpaque, Attention: "likely"}, Rest},
		{"asking", "build", nil, wire.State{Phase: wire.PhaseWaiting, Want: wire.WantLine}, Answer},
		{"continuation", "main", nil, wire.State{Phase: wire.PhaseContinuation}, Answer},
		{"exit", "main", nil, wire.State{Phase: wire.PhaseDead, ExitCode: code(0)}, None},
		{"exit 1", "main", nil, wire.State{Phase: wire.PhaseDead, ExitCode: code(1)}, Shell},
		{"killed", "main", nil, wire.State{Phase: wire.PhaseDead, Signal: "KILL"}, Shell},
		{"a program", "top", []string{"top"}, wire.State{Phase: wire.PhaseDead, ExitCode: code(1)}, None},
		{"the image's program", "entrypoint", nil, wire.State{Phase: wire.PhaseDead, ExitCode: code(1)}, None},
	} {
		if got := of(tt.name, tt.argv, tt.st); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, got, tt.want)
		}
	}
}

// A hostile guest may send any evidence: Since stays between the session's beginning and now, and
// unchanged evidence is reported once.
func FuzzTracker(f *testing.F) {
	f.Add("main", int64(1000), int64(2000), "waiting", "line", "alice", false, "running",
		int64(1<<62))
	f.Add("entrypoint", int64(0), int64(-5), "dead", "password", "", true, "prompt", int64(0))
	f.Fuzz(func(t *testing.T, name string, begun, since int64, phase, want, keyboard string,
		blocked bool, next string, later int64) {
		now := time.UnixMilli(1 << 40)
		begun = max(0, min(begun, now.UnixMilli()))
		var tr Tracker
		for i, p := range []string{phase, next, phase} {
			e := Evidence{Session: name, Begun: begun, Keyboard: keyboard, Blocked: blocked,
				State: wire.State{Phase: wire.Phase(p), Want: wire.Want(want),
					SinceUnix: []int64{since, later, since}[i]}}
			tr.Observe(e, now)
			if tr.Since.Before(time.UnixMilli(begun)) || tr.Since.After(now) {
				t.Fatalf("since %v is not between %d and %v", tr.Since, begun, now)
			}
			if tr.Observe(e, now) {
				t.Fatal("the same evidence is reported twice")
			}
		}
	})
}
