package track

import (
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestRests checks when a listening program counts as at rest. That depends on output, input and
// its statement about itself.
func TestRests(t *testing.T) {
	const (
		never = time.Hour
		ms    = time.Millisecond
	)
	for _, tt := range []struct {
		name                string
		printed, typed      time.Duration // how long ago
		status              screen.Status
		said                time.Duration // how long ago
		facts               Facts
		before, gone, rests bool // said before the last prompt; by another group
	}{
		{name: "it has just printed", printed: 699 * ms, typed: never},
		{name: "quiet", printed: 700 * ms, typed: never, rests: true},
		{name: "quiet, but just typed to", printed: never, typed: 699 * ms},
		{name: "quiet since it was typed to", printed: never, typed: 700 * ms, rests: true},
		{name: "a reader of lines", printed: 100 * ms, typed: never, facts: Facts{OnlyTimers: true, Want: wire.WantLine}, rests: true},
		{name: "a reader of lines that was typed to", printed: never, typed: 99 * ms, facts: Facts{OnlyTimers: true, Want: wire.WantLine}},
		{name: "a reader of keys", printed: 100 * ms, typed: never, facts: Facts{OnlyTimers: true, Want: wire.WantRaw}},
		{name: "it works and pauses", printed: 10 * time.Second, typed: never, status: screen.StatusWorking, said: never},
		{name: "it is said to work, and dead still", printed: 30 * time.Second, typed: never, status: screen.StatusWorking, said: never, rests: true},
		{name: "it is about to ask", printed: 400 * ms, typed: never, status: screen.StatusBlocked, said: 430 * ms},
		{name: "it asks", printed: 300 * ms, typed: never, status: screen.StatusBlocked, said: 700 * ms, rests: true},
		{name: "it asks and still draws", printed: 299 * ms, typed: never, status: screen.StatusBlocked, said: 800 * ms},
		{name: "it asks and goes on to draw", printed: 0, typed: never, status: screen.StatusBlocked, said: 1999 * ms},
		{name: "it asks and moves something", printed: 0, typed: never, status: screen.StatusBlocked, said: 2 * time.Second, rests: true},
		{name: "it asked and was typed to", printed: never, typed: 500 * ms, status: screen.StatusBlocked, said: never},
		{name: "it asked, was typed to, and has drawn", printed: 300 * ms, typed: 700 * ms, status: screen.StatusBlocked, said: never, rests: true},
		{name: "it asked, was typed to, and draws", printed: 299 * ms, typed: 1999 * ms, status: screen.StatusBlocked, said: never},
		{name: "it asked, was typed to, and moves something", printed: 0, typed: 2 * time.Second, status: screen.StatusBlocked, said: never, rests: true},
		{name: "it is done", printed: 300 * ms, typed: never, status: screen.StatusDone, said: 310 * ms, rests: true},
		{name: "it takes the next task", printed: 300 * ms, typed: never, status: screen.StatusIdle, said: 310 * ms, rests: true},
		{name: "it has failed", printed: 300 * ms, typed: never, status: screen.StatusError, said: 310 * ms, rests: true},
		{name: "the one before it said that it works", printed: 700 * ms, typed: never, status: screen.StatusWorking, said: never, before: true, rests: true},
		{name: "the one behind it said that it works", printed: 700 * ms, typed: never, status: screen.StatusWorking, said: never, gone: true, rests: true},
		{name: "the one before it asked", printed: 300 * ms, typed: never, status: screen.StatusBlocked, said: never, before: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := time.Unix(1_000_000, 0)
			tr := &Tracker{opt: Options{Program: true}, state: wire.State{Phase: wire.PhaseRunning},
				overAt: 10,
				observed: observed{activity: activity{printed: now.Add(-tt.printed),
					typed: now.Add(-tt.typed)}}}
			l := Look{Facts: tt.facts}
			l.Facts.Foreground, l.Facts.Listens = 7, true
			if tt.status != "" {
				l.Said = Statement{Status: tt.status, Count: 1, At: 11, When: now.Add(-tt.said)}
				if tt.before {
					l.Said.At = 10
				}
			}
			if tt.gone {
				tr.speaker = speaker{count: 1, group: 6}
			}
			tr.Look(l, Moment{Time: now})
			if st := tr.Last(); (st.Attention == "likely") != tt.rests || !st.Listens {
				t.Errorf("got %+v, want that it rests: %t", st, tt.rests)
			}
		})
	}
}

// TestRestsAfterWork checks that a program which was busy without output is at rest only when it
// has listened for restTime, and that a program at rest may stir.
func TestRestsAfterWork(t *testing.T) {
	s := newScript(t, Options{Program: true, Probed: true})
	s.print(1)
	attention := func(want string) {
		t.Helper()
		if got := s.tr.Last().Attention; got != want {
			t.Errorf("after %v: attention %q, want %q", s.now.Sub(time.Unix(1_000_000, 0)), got,
				want)
		}
	}
	busy := works
	busy.Foreground = listens.Foreground
	for range 16 { // such as a coding agent that starts
		s.look(Look{Facts: busy})
		s.after(250 * time.Millisecond)
	}
	s.look(Look{Facts: listens})
	attention("no")
	s.after(restTime)
	s.look(Look{Facts: listens})
	attention("likely")
	s.after(time.Second)
	s.look(Look{Facts: busy}) // such as a garbage collector
	attention("")
	s.after(100 * time.Millisecond)
	s.look(Look{Facts: listens})
	attention("likely")
	s.print(1)
	for range 4 {
		s.after(250 * time.Millisecond)
		s.look(Look{Facts: busy})
	}
	s.look(Look{Facts: listens})
	attention("no")
	s.after(restTime)
	s.look(Look{Facts: listens})
	attention("likely")
}

// TestRestsDespiteWork checks that a program which asks is at rest although it works now and then,
// such as for a server that it started.
func TestRestsDespiteWork(t *testing.T) {
	s := newScript(t, Options{Program: true, Probed: true})
	s.print(1)
	asked := s.now
	busy := works
	busy.Foreground = listens.Foreground
	for s.now.Sub(asked) < silentWork+time.Second {
		for range 2 {
			s.look(Look{Facts: listens})
			if s.tr.Last().Attention == "likely" {
				return
			}
			s.after(250 * time.Millisecond)
		}
		s.look(Look{Facts: busy})
		s.after(250 * time.Millisecond)
	}
	t.Errorf("no attention %v after the question", s.now.Sub(asked))
}
