package track

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestTraceOfFlood checks that output and looks that change nothing use no memory, and that the
// replay asks at the same time.
func TestTraceOfFlood(t *testing.T) {
	s := newScript(t, Options{Marked: true, TypedMarks: true})
	s.cycle(0)
	s.give(&Command{Number: 1})
	s.mark(marks.Mark{Kind: marks.CommandStart, Run: true, Number: 1}, Front{})
	before := len(s.tr.Trace(s.now).Observations)
	if n := testing.AllocsPerRun(1000, func() {
		s.after(time.Millisecond)
		s.print(10)
	}); n > 0 {
		t.Errorf("%v allocations per output", n)
	}
	for range 300 {
		s.after(time.Second)
		s.look(Look{Facts: works})
	}
	s.look(Look{Facts: asks, Before: "sure? "})
	asked := s.now
	for range 300 {
		s.after(time.Second)
		s.look(Look{Facts: asks, Before: "sure? "})
	}
	trace := s.tr.Trace(s.now)
	if got := len(trace.Observations) - before; got != 3 {
		t.Errorf("%d observations, want output, work and a question", got)
	}
	var first time.Time
	if err := Replay(trace, func(s Step) {
		if s.Asks && first.IsZero() {
			first = s.At
		}
	}); err != nil || !first.Equal(asked) {
		t.Errorf("the replay asks at %v, want %v; %v", first, asked, err)
	}
}

// TestTraceIsBounded checks the estimated size of what a session keeps.
func TestTraceIsBounded(t *testing.T) {
	s := newScript(t, Options{Marked: true, TypedMarks: true})
	for i := range 20_000 {
		s.after(time.Millisecond)
		s.print(1)
		f := works
		f.Pid, f.Argv = i, []string{"make", strings.Repeat("x", i%3000)}
		s.look(Look{Facts: f, Before: strings.Repeat("y", i%3000), Anew: true})
	}
	s.look(Look{Facts: asks})
	r, size := s.tr.ring, 0
	for _, h := range []half{r.old, r.now} {
		size += cap(h.all)*int(unsafe.Sizeof(Observation{})) + len(h.seeds)*sizeSeed
		var last []string
		for _, o := range h.all {
			if o.Look == nil {
				continue
			}
			size += int(unsafe.Sizeof(Seen{})) + len(o.Look.Before)
			if len(last) != len(o.Look.Argv) || len(last) > 0 && &last[0] != &o.Look.Argv[0] {
				for _, a := range o.Look.Argv {
					size += len(a) + int(unsafe.Sizeof(a))
				}
			}
			last = o.Look.Argv
		}
	}
	if size > 256<<10 {
		t.Errorf("%d bytes", size)
	}
	for name, sizes := range map[string][2]int{
		"Observation": {int(unsafe.Sizeof(Observation{})), sizeObservation},
		"Seen":        {int(unsafe.Sizeof(Seen{})), sizeSeen},
		"With":        {int(unsafe.Sizeof(With{})), sizeWith},
		"Seed":        {int(unsafe.Sizeof(Seed{})), sizeSeed},
	} {
		if sizes[0] > sizes[1] {
			t.Errorf("%s has %d bytes, not %d", name, sizes[0], sizes[1])
		}
	}
	checkReplay(t, s.tr)
}

// TestTraceOfShells checks the replay of shells inside the session's own, which end in any order.
func TestTraceOfShells(t *testing.T) {
	s := newScript(t, Options{Marked: true, TypedMarks: true})
	s.cycle(0)
	outer := s.tr
	for i := range 3 {
		inner, news := s.tr.Restart(Options{Marked: true, Depth: i + 1,
			Process: &wire.Shell{Pid: 200 + i, Name: "bash", User: "bob"}}, s.moment())
		s.take(news)
		s.tr = inner
		s.tr.Know(uint64(7 + i))
		s.cycle(0)
		checkReplay(t, s.tr)
	}
	s.take(s.tr.Leave(outer, nil, wire.Done, s.moment()))
	s.tr = outer
	s.cycle(3)
	checkReplay(t, s.tr)
	text, err := json.Marshal(s.tr.Trace(s.now))
	if err != nil || strings.Contains(string(text), "bob") ||
		strings.Contains(string(text), "/home") {
		t.Errorf("%v; a user or a directory in %s", err, text)
	}
}

// TestReplayOfBadTraces checks that a replay of any file returns.
func TestReplayOfBadTraces(t *testing.T) {
	for _, text := range []string{
		`{"observations":[{"do":"look"}]}`,
		`{"observations":[{"do":"restart"}]}`,
		`{"observations":[{"do":"restart","tracker":1,"with":{"other":9,"options":{}}}]}`,
		`{"observations":[{"do":"restart","tracker":1,"with":{"options":{}}},
			{"do":"leave","tracker":1,"with":{"other":3}}]}`,
		`{"observations":[{"do":"restart","tracker":1,"with":{"options":{}}},
			{"do":"look","tracker":1}]}`,
		`{"observations":[{"do":"restart","tracker":1,"with":{"options":{}}},
			{"do":"look","tracker":1,"more":4294967295,"look":{}}]}`,
		`{"observations":[{"do":"restart","tracker":1,"with":{"options":{}}},
			{"do":"sing","tracker":1}]}`,
	} {
		var trace Trace
		if err := json.Unmarshal([]byte(text), &trace); err != nil {
			t.Fatal(err)
		}
		if err := Replay(trace, func(Step) {}); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

// BenchmarkRun is what the trackers of a session cost for one command of run.
func BenchmarkRun(b *testing.B) {
	for name, traced := range map[string]bool{"traced": true, "untraced": false} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			now, end, number := time.Unix(1_000_000, 0), uint64(0), uint64(0)
			at := func() Moment { return Moment{Time: now, End: end} }
			tr, _ := New(now).Restart(Options{Marked: true, TypedMarks: true}, at())
			if !traced {
				tr.ring = nil
			}
			mark := func(m marks.Mark) {
				now = now.Add(100 * time.Microsecond)
				end += 10
				tr.Printed(now)
				tr.Mark(m, inFront, at())
			}
			for b.Loop() {
				mark(marks.Mark{Kind: marks.PromptStart})
				mark(marks.Mark{Kind: marks.PromptEnd})
				tr.Look(Look{Facts: reads, Anew: true}, at())
				tr.Look(Look{Facts: reads}, at())
				number++
				cmd := &Command{Number: number}
				tr.Give(cmd, wire.BasisMark, at())
				tr.Writes()
				tr.Typed()
				tr.Was(Reader{})
				tr.Types(cmd)
				tr.Input([]byte("\r"), 0, at())
				tr.Wrote(now)
				tr.Look(Look{Facts: works, Anew: true}, at())
				mark(marks.Mark{Kind: marks.CommandStart, Run: true, Number: number})
				mark(marks.Mark{Kind: marks.CommandEnd})
			}
		})
	}
}
