package session_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
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

// printing is a Prober. While the program listens and has been quiet, it prints to the terminal, as
// if the program had, before it reports that the program listens.
type printing struct {
	proc.Prober

	mu    sync.Mutex
	begun time.Time // of the first text
	last  bool      // the second one was printed
}

func (p *printing) Probe(ctx context.Context, tty session.TTY) (session.Facts, error) {
	f, err := p.Prober.Probe(ctx, tty)
	p.mu.Lock()
	defer p.mu.Unlock()
	f.Still = nil // probe each time
	// Just before a quiet program counts as at rest: AskTime is 300 ms more than that.
	const quiet = track.AskTime - 305*time.Millisecond
	text := ""
	switch {
	case err != nil || !f.Listens || len(f.Argv) == 0 || filepath.Base(f.Argv[0]) != "python3":
	case p.begun.IsZero():
		p.begun, text = time.Now(), "first\n"
	case !p.last && time.Since(p.begun) >= quiet:
		p.last, text = true, "second\n"
	}
	if text != "" {
		if err := os.WriteFile(tty.Name, []byte(text), 0); err != nil {
			return f, err
		}
	}
	return f, err
}

// A program is not at rest while output of it waits in the terminal.
func TestUnreadOutput(t *testing.T) {
	t.Parallel()
	c := fresh(t, newProbedSet(t, "/bin/bash", &printing{}))
	res := do(t, c, wire.Request{Verb: wire.VerbRun, TimeoutMS: 60_000,
		Text: "python3 -c 'import select, socket; s = socket.create_server((\"127.0.0.1\", 0)); " +
			"select.select([0, s], [], [])'"})
	if res.Ended != wire.Attention || res.Output != "first\nsecond\n" {
		t.Errorf("ended %s with %q", res.Ended, res.Output)
	}
}
