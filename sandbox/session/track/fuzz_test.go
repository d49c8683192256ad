package track

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// FuzzTracker makes observations in any order, three bytes each, and checks the invariants of a
// tracker after each one. The first byte sets the options.
func FuzzTracker(f *testing.F) {
	f.Add([]byte{1, 5, 0, 0, 6, 0, 0, 0x20, 0, 0, 0x09, 0, 9})
	f.Add([]byte{3, 5, 4, 0, 6, 4, 0, 13, 0, 0, 2, 4, 1, 3, 0, 1, 5, 4, 1, 6, 4, 1})
	f.Add([]byte{8, 0, 1, 0, 10, 0x80, 200, 13, 0, 1, 10, 0x81, 255})
	f.Add([]byte{2, 0, 1, 0, 10, 8, 9, 11, 0, 9, 10, 16, 250, 12, 0, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) == 0 {
			return
		}
		opt := Options{Marked: in[0]&1 != 0, Probed: in[0]&2 != 0, NoScreen: in[0]&4 != 0,
			TypedMarks: in[0]&16 != 0,
			ReadsLines: in[0]&32 != 0, Program: in[0]&64 != 0}
		if in[0]&8 != 0 {
			opt.Prompt = func(before string) bool { return before == "$" }
		}
		z := &fuzzed{t: t, opt: opt, now: time.Unix(1_000_000, 0)}
		first := New(z.now)
		first.ring.most = 4 * sizeWith // so that the trace loses its start often
		z.tr, _ = first.Restart(opt, z.moment())
		for in = in[1:]; len(in) >= 3; in = in[3:] {
			z.step(in[0]&15, in[1], in[2])
		}
		checkReplay(t, z.tr)
	})
}

// fuzzed is a tracker and the observations so far.
type fuzzed struct {
	t      *testing.T
	opt    Options
	tr     *Tracker
	now    time.Time
	end    uint64
	marked bool // there was a mark of the shell
	seen   bool // processes were
	shown  bool // there was a screen to look at
	offset uint64
	given  []*Command
}

func (z *fuzzed) moment() Moment { return Moment{Time: z.now, End: z.end} }

// step makes one observation and checks the result.
func (z *fuzzed) step(op, a, b byte) {
	tr := z.tr
	z.now = z.now.Add(time.Duration(b) * 10 * time.Millisecond)
	before, counts, overs := tr.Last(), tr.Counts(), z.overs()
	var n News
	again := false
	switch op {
	case 0:
		z.end += uint64(a)
		tr.Printed(z.now)
	case 1, 2, 3, 4, 5, 6, 7, 8:
		front := Front{Shell: a&1 != 0, Known: a&3 != 0}
		m := marks.Mark{Kind: marks.Kind(op), Exit: int(b), Run: a&4 != 0,
			Number: uint64(len(z.given))}
		z.marked = true
		at := z.moment()
		at.Held = uint64(b)
		n = tr.Mark(m, front, at)
		if n.GaveUp {
			z.end += at.Held
		}
	case 9, 10:
		l := z.lookOf(op == 10, a, b)
		again, n = tr.Look(l, z.moment())
	case 11:
		tr.Writes()
		tr.Typed()
		n = tr.Input([]byte{a}, uint64(b&1), z.moment())
		tr.Wrote(z.now)
	case 12:
		z.shown = true
		n = tr.Tick(a&1 != 0, Front{Shell: a&2 != 0, Known: a&4 != 0}, z.moment())
	case 13:
		if tr.Phase() == wire.PhasePrompt && tr.Command() == nil {
			cmd := &Command{Number: uint64(len(z.given)) + 1, Typed: true}
			z.given = append(z.given, cmd)
			n = tr.Give(cmd, wire.BasisMark, z.moment())
		}
	case 14:
		if cmd := tr.Command(); cmd != nil && !cmd.Started && a&1 != 0 {
			n = tr.Start(cmd, z.end)
		} else if cmd != nil && !cmd.Started {
			tr.Withdraw(cmd)
		}
	case 15:
		if a < 16 {
			n = tr.Exit(nil, "HUP", "", z.moment())
		} else {
			tr.Forge()
		}
	}
	z.check(before, counts, overs, n, again)
}

// checkReplay checks that the replay of a trace ends with the same tracker.
func checkReplay(t *testing.T, tr *Tracker) {
	t.Helper()
	text, err := json.Marshal(tr.Trace(tr.ring.base))
	if err != nil {
		t.Fatal(err)
	}
	var trace Trace
	if err := json.Unmarshal(text, &trace); err != nil {
		t.Fatal(err)
	}
	again, err := replayed(trace, func(Step) {})
	if err != nil {
		t.Fatal(err)
	}
	got, want := seedOf(again, tr.ring), seedOf(tr, tr.ring)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("the replay differs from the tracker (-tracker +replay):\n%s\n%s", diff, text)
	}
}

// lookOf returns a look with process facts, or without them if blind.
func (z *fuzzed) lookOf(blind bool, a, b byte) Look {
	l := Look{Shell: 1, Alt: a&1 != 0, Blank: a&3 == 3, Line: z.end, Calls: uint64(b & 1),
		Anew: b&2 != 0, Answers: b&4 != 0}
	if b&8 != 0 {
		l.Before = "$"
	}
	if blind {
		l.Err = errors.New("blind")
	} else {
		z.seen = true
		pid := 1 + int(a>>7)
		l.Facts = Facts{Foreground: pid, Pid: pid, ShellIsForeground: a&2 != 0, Blocked: a&4 != 0,
			Listens: a&8 != 0,
			Opaque:  a&16 != 0, Pending: a&32 != 0, OnlyTimers: a&64 != 0, Runs: uint64(b & 3),
			Want: wire.WantLine}
	}
	if b&16 != 0 {
		l.Modes = &Modes{Lines: b&32 != 0, Echo: b&64 != 0}
	}
	if b&128 != 0 {
		status := []screen.Status{screen.StatusWorking, screen.StatusBlocked,
			screen.StatusDone}[a%3]
		l.Said = Statement{Status: status, Count: uint64(b), At: z.end, When: z.now}
	}
	z.shown = true
	return l
}

// overs returns how many commands have ended.
func (z *fuzzed) overs() (n int) {
	for _, cmd := range z.given {
		if cmd.Over {
			n++
		}
	}
	return n
}

// check checks what must hold after every observation.
func (z *fuzzed) check(before wire.State, counts Counts, overs int, n News, again bool) {
	z.t.Helper()
	st, now := z.tr.State(z.now), z.tr.Counts()
	has := func(b wire.Basis) bool { return slices.Contains(st.Basis, b) }
	switch {
	case before.Phase == wire.PhaseDead && (st.Phase != wire.PhaseDead || len(n.Events) > 0):
		z.t.Fatalf("the dead live: %+v, %+v", st, n)
	case len(st.Basis) == 0 && st.Reason != "starting" && st.Phase != wire.PhaseRunning:
		z.t.Fatalf("no basis: %+v", st)
	case st.Phase == wire.PhasePrompt && !has(wire.BasisMark) && !has(wire.BasisScreen):
		z.t.Fatalf("a prompt that nothing says: %+v", st)
	case st.Phase == wire.PhaseContinuation && !has(wire.BasisMark), has(wire.BasisMark) &&
		!z.marked && len(z.given) == 0 && !z.opt.Marked:
		z.t.Fatalf("a mark that nobody printed: %+v", st)
	case st.Phase == wire.PhasePrompt && has(wire.BasisScreen) && !z.tr.ByScreen():
		z.t.Fatalf("a prompt by the screen of a shell that says it itself: %+v", st)
	case st.Phase == wire.PhaseWaiting && (!z.seen || !has(wire.BasisProcess)):
		z.t.Fatalf("waiting is a fact, and nobody has looked: %+v", st)
	case st.Phase == wire.PhaseDead && !has(wire.BasisExit):
		z.t.Fatalf("dead by %v", st.Basis)
	case st.Attention == likely && st.Phase != wire.PhaseRunning && st.Phase != wire.PhaseOpaque:
		z.t.Fatalf("%s, and may need a person", st.Phase)
	case st.Offset < z.offset, st.Offset > z.end:
		z.t.Fatalf("state at %d, after one at %d, of a log of %d", st.Offset, z.offset, z.end)
	case now.Prompted < counts.Prompted, now.Continued < counts.Continued,
		now.Concluded < counts.Concluded, now.Verdicts < counts.Verdicts:
		z.t.Fatalf("counts go back: %+v, %+v", counts, now)
	case now.Verdicts > counts.Verdicts && !n.Changed:
		z.t.Fatal("a verdict that wakes nobody")
	case again && len(n.Events) > 0:
		z.t.Fatalf("to be confirmed, and reported: %+v", n.Events)
	}
	z.offset = st.Offset
	results := 0
	for _, ev := range n.Events {
		if ev.Kind == wire.EventResult {
			results++
		}
	}
	if got := z.overs() - overs; got > results {
		z.t.Fatalf("%d commands are over, of which %d results tell", got, results)
	}
	for _, cmd := range z.given {
		switch {
		case cmd.Over && cmd == z.tr.Command():
			z.t.Fatalf("the shell has a command that is over: %+v", cmd)
		case cmd.Over && cmd.Exit != nil && !cmd.Started:
			z.t.Fatalf("an exit code of what did not run: %+v", cmd)
		case cmd.Ended && (cmd.To < cmd.From || cmd.To > z.end):
			z.t.Fatalf("output of a command to %d from %d, of a log of %d", cmd.To, cmd.From, z.end)
		}
	}
}
