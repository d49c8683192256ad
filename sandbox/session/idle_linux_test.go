package session_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// counting is a Prober that counts its calls.
type counting struct {
	proc.Prober
	asked *atomic.Int64
}

func (c counting) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	c.asked.Add(1)
	return c.Prober.Probe(ctx, tty)
}

// TestIdle counts the probes of an idle shell: none while no call waits, about one per second while
// a call waits for another state.
func TestIdle(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	set := newProbedSet(t, "/bin/bash", counting{asked: &asked})
	c := fresh(t, set)
	settled := asked.Load()
	// The probe that was running when the last caller left.
	for end := time.Now().Add(time.Minute); ; {
		<-time.After(200 * time.Millisecond)
		now := asked.Load()
		if now == settled {
			break
		}
		if settled = now; time.Now().After(end) {
			t.Fatal("the prober looks for nobody")
		}
	}
	<-time.After(2 * time.Second)
	if n := asked.Load() - settled; n != 0 {
		t.Errorf("looked %d times for nobody", n)
	}
	res := do(
		t,
		c,
		wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhaseDead}, TimeoutMS: 5000},
	)
	if res.Ended != wire.Deadline {
		t.Fatalf("got %+v", res)
	}
	if n := asked.Load() - settled; n == 0 || n > 35 { // a probe every 64 ms would be 78
		t.Errorf("looked %d times in 5 s", n)
	}
	// Input without output is still noticed immediately.
	res = do(t, c, wire.Request{Verb: wire.VerbRun, Text: "read -s x; read y"})
	if res.Want != wire.WantPassword {
		t.Fatalf("got %+v", res)
	}
	if res = do(t, c, wire.Request{Verb: wire.VerbType,
		Text: "secret"}); res.Ended != wire.Waiting ||
		res.Want != wire.WantLine {
		t.Errorf("got %+v", res)
	}
	t.Logf("the next question was reported after %d ms", res.ElapsedMS)
}

// TestSleeps counts the probes of a sleeping program while a call waits. A later question without
// output must be reported, and one with output immediately.
func TestSleeps(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	set := newProbedSet(t, "/bin/bash", counting{asked: &asked})
	c := fresh(t, set)
	res := do(
		t,
		c,
		wire.Request{
			Verb:      wire.VerbRun,
			Text:      "sleep 8; read -s x; sh -c 'sleep 1; printf more?; read y'",
			TimeoutMS: 1000,
		},
	)
	if res.Ended != wire.Deadline || res.Phase != wire.PhaseRunning {
		t.Fatalf("got %+v", res)
	}
	settled := asked.Load()
	res = do(t, c, wire.Request{Verb: wire.VerbWait, TimeoutMS: 4000})
	if res.Ended != wire.Deadline || res.Phase != wire.PhaseRunning {
		t.Fatalf("got %+v", res)
	}
	if n := asked.Load() - settled; n == 0 || n > 30 { // every 64 ms would be 62
		t.Errorf("looked %d times in 4 s", n)
	}
	if res = do(t, c, wire.Request{Verb: wire.VerbWait}); res.Ended != wire.Waiting ||
		res.Want != wire.WantPassword {
		t.Fatalf("got %+v", res)
	}
	if res = do(t, c, wire.Request{Verb: wire.VerbType, Text: "x"}); res.Ended != wire.Waiting ||
		res.Want != wire.WantLine ||
		res.Prompt != "more?" {
		t.Errorf("got %+v", res)
	}
}
