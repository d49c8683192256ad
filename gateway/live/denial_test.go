package live

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// story is a session of which a test says what arrives here, in which order.
type story struct {
	*Session
	seq uint64
}

func newStory(t *testing.T) *story {
	s := &story{Session: adopt(t, newSessions(t, nil), "fed")}
	s.becomes(wire.PhasePrompt)
	return s
}

func (s *story) blocks(d wire.Denial) { s.set.Blocked(d) }

// calls begins a call.
func (s *story) calls(verb wire.Verb, op string) *Call {
	return s.Begin(wire.Request{Verb: verb, Op: op})
}

// reported is what a call reports as blocked.
func reported(t *testing.T, c *Call) []wire.Denial {
	var r wire.Result
	c.Complete(t.Context(), &r)
	return r.Denied
}

func (s *story) tells(e wire.Event) {
	s.seq++
	e.Seq = s.seq
	s.Feed().Event(e)
}

func (s *story) becomes(p wire.Phase) {
	s.tells(wire.Event{Kind: wire.EventState, State: &wire.State{Phase: p, Basis: []wire.Basis{}}})
}

// begins tells what the guest does of a run.
func (s *story) begins(op string) {
	s.tells(wire.Event{Kind: wire.EventCommand, Op: op})
	s.becomes(wire.PhaseRunning)
}

var (
	example = wire.Denial{Host: "example.com", Port: 443, Why: "not listed"}
	another = wire.Denial{Host: "10.0.0.1", Port: 80, Why: "closed"}
)

// wants fails the test unless the session shows d as refused; nil is nothing.
func (s *story) wants(t *testing.T, d *wire.Denial) {
	t.Helper()
	want := attention.Need{}
	if d != nil {
		want.Needs, want.LastLine = attention.Allow, DenialText(*d)
	}
	if got := s.Need(); got.Needs != want.Needs || got.LastLine != want.LastLine {
		t.Errorf("the session needs %q for %q, want %q for %q", got.Needs, got.LastLine, want.Needs,
			want.LastLine)
	}
}

// A connection may be refused before the daemon has heard that its command began, or that the one
// before has ended.
func TestDenialBeforeItsCommandIsKnown(t *testing.T) {
	for name, before := range map[string]func(*story){
		"the prompt is known": func(*story) {},
		"the last command seems to run": func(s *story) {
			s.begins("before")
			s.blocks(another) // of that one
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			before(s)
			h := s.calls(wire.VerbRun, "op")
			s.blocks(example)
			if s.State().Phase == wire.PhaseRunning {
				s.becomes(wire.PhasePrompt)
			}
			s.begins("op")
			s.wants(t, &example)
			if diff := cmp.Diff([]wire.Denial{example}, reported(t, h)); diff != "" {
				t.Errorf("the call reports (-want +got):\n%s", diff)
			}
			h.End()
			s.becomes(wire.PhasePrompt)
			s.wants(t, &example)
		})
	}
}

// The events of a command may all come after its result.
func TestDenialOfACommandThatIsKnownWhenItIsOver(t *testing.T) {
	s := newStory(t)
	h := s.calls(wire.VerbRun, "op")
	s.blocks(example)
	h.End()
	s.wants(t, &example)
	s.begins("op")
	s.becomes(wire.PhasePrompt)
	s.wants(t, &example)
}

// What the last command was refused is dealt with when the next one begins, unless it is refused
// the same.
func TestDenialOfTheCommandBefore(t *testing.T) {
	s := newStory(t)
	first := s.calls(wire.VerbRun, "1")
	s.begins("1")
	s.blocks(example)
	first.End()
	s.becomes(wire.PhasePrompt)

	second := s.calls(wire.VerbRun, "2")
	s.begins("2")
	s.wants(t, nil)
	s.blocks(example) // within a second of the first: nobody is woken twice for one command
	s.wants(t, &example)
	told := s.Situation(wire.Party{}).Denials
	s.blocks(example)
	if now := s.Situation(wire.Party{}).Denials; now != told {
		t.Errorf("the same refusal is reported again: %d times after %d", now, told)
	}
	second.End()
	s.becomes(wire.PhasePrompt)

	third := s.calls(wire.VerbRun, "3")
	s.begins("3")
	third.End()
	s.becomes(wire.PhasePrompt)
	s.wants(t, nil)
}

// A person types the command; the daemon hears of its beginning after the connection that it made.
func TestDenialOfATypedCommand(t *testing.T) {
	s := newStory(t)
	s.blocks(example)
	s.wants(t, nil)
	s.tells(wire.Event{Kind: wire.EventBegun, By: "person:alice"})
	s.becomes(wire.PhaseRunning)
	s.wants(t, &example)
	s.set.Unblocked()
	s.wants(t, nil)
	s.becomes(wire.PhasePrompt)
	s.becomes(wire.PhaseRunning)
	s.wants(t, nil)
}

// A session in which nothing runs needs nothing when another one's connection is refused.
func TestDenialOfAnotherSession(t *testing.T) {
	s := newStory(t)
	h := s.calls(wire.VerbWait, "")
	s.blocks(example)
	s.wants(t, nil)
	if got := reported(t, h); len(got) != 0 {
		t.Errorf("a wait at the prompt reports %v", got)
	}
	h.End()
}

// Of more blocked connections than are remembered a Result has the newest, and says so.
func TestDeniedIsTruncated(t *testing.T) {
	s := newStory(t)
	c := s.calls(wire.VerbRun, wire.NewOp())
	defer c.End()
	for _, n := range []int{MaxBlocked, MaxBlocked + 1} {
		for i := range n {
			s.blocks(wire.Denial{Host: fmt.Sprintf("h%d.test", i), Port: 443})
		}
		var r wire.Result
		c.Complete(t.Context(), &r)
		if got := slices.Contains(r.Notes, wire.NoteDenied); len(r.Denied) != MaxBlocked ||
			got != (n > MaxBlocked) {
			t.Errorf("of %d: %d, notes %v", n, len(r.Denied), r.Notes)
		}
	}
}
