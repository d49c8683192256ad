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

// A program that rests again and again for a short time needs a person once. It does so again after
// a long rest, or when it has worked for a while.
func TestTrackerOfRests(t *testing.T) {
	var tr Tracker
	now := time.UnixMilli(1 << 40)
	for i, step := range []struct {
		after time.Duration
		rests bool
		want  Kind
		due   time.Duration // from then on
	}{
		{0, true, Rest, 0},
		{2 * time.Second, false, None, 0},
		{2 * time.Second, true, None, 5 * time.Second},
		{2 * time.Second, true, None, 3 * time.Second},
		{time.Second, false, None, 0},
		{20 * time.Second, true, None, 5 * time.Second},
		{5 * time.Second, true, Rest, 0},
		{time.Minute, true, Rest, 0},
		{time.Second, false, None, 0},
		{time.Second, true, Rest, 0}, // the last one was long
		{time.Second, false, None, 0},
		{31 * time.Second, true, Rest, 0},
	} {
		now = now.Add(step.after)
		st := wire.State{Phase: wire.PhaseRunning, Listens: true}
		if step.rests {
			st.Attention = "likely"
		}
		tr.Observe(Evidence{Session: "main", State: st}, now)
		due := time.Duration(0)
		if !tr.Due().IsZero() {
			due = tr.Due().Sub(now)
		}
		if tr.Needs != step.want || due != step.due {
			t.Errorf("%d: needs %q, due in %v; want %q, %v", i, tr.Needs, due, step.want, step.due)
		}
	}
}

// A blocked connection is a need since it was blocked, not since its command began.
func TestTrackerOfBlocked(t *testing.T) {
	var tr Tracker
	now := time.UnixMilli(1 << 40)
	e := Evidence{Session: "main", State: wire.State{Phase: wire.PhaseRunning,
		SinceUnix: now.Add(-time.Hour).UnixMilli()}}
	tr.Observe(e, now)
	e.Blocked = true
	now = now.Add(time.Minute)
	if tr.Observe(e, now); tr.Needs != Allow || !tr.Since.Equal(now) {
		t.Errorf("needs %q since %v, want %v", tr.Needs, tr.Since, now)
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
