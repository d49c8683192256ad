package gateway

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// story is a session of which a test says what arrives here, in which order.
type story struct {
	*Live
	seq uint64
}

func newStory(t *testing.T) *story {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	s := &story{Live: fed(t, d)}
	s.becomes(wire.PhasePrompt)
	return s
}

func (s *story) tells(e wire.Event) {
	s.seq++
	e.Seq = s.seq
	s.event(e)
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
	blocked = wire.Denial{Host: "example.com", Port: 443, Why: "not listed"}
	another = wire.Denial{Host: "10.0.0.1", Port: 80, Why: "closed"}
)

// wants fails the test unless the session shows d as refused; nil is nothing.
func (s *story) wants(t *testing.T, d *wire.Denial) {
	t.Helper()
	want := attention.Need{}
	if d != nil {
		want.Needs, want.LastLine = attention.Allow, DenialText(*d)
	}
	if got := s.needed(); got.Needs != want.Needs || got.LastLine != want.LastLine {
		t.Errorf("the session needs %q for %q, want %q for %q", got.Needs, got.LastLine, want.Needs, want.LastLine)
	}
}

// A connection may be refused before the daemon has heard that its command began, or that the one before has ended.
func TestDenialBeforeItsCommandIsKnown(t *testing.T) {
	for name, before := range map[string]func(*story){
		"the prompt is known": func(*story) {},
		"the last command seems to run": func(s *story) {
			s.begins("before")
			s.box.refused(another) // of that one
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			before(s)
			h := s.hearing(wire.VerbRun, "op")
			s.box.refused(blocked)
			if s.State().Phase == wire.PhaseRunning {
				s.becomes(wire.PhasePrompt)
			}
			s.begins("op")
			s.wants(t, &blocked)
			if diff := cmp.Diff([]wire.Denial{blocked}, s.heard(t.Context(), h)); diff != "" {
				t.Errorf("the call is told (-want +got):\n%s", diff)
			}
			s.hush(h)
			s.becomes(wire.PhasePrompt)
			s.wants(t, &blocked)
		})
	}
}

// The events of a command may all come after its result.
func TestDenialOfACommandThatIsKnownWhenItIsOver(t *testing.T) {
	s := newStory(t)
	h := s.hearing(wire.VerbRun, "op")
	s.box.refused(blocked)
	s.hush(h)
	s.wants(t, &blocked)
	s.begins("op")
	s.becomes(wire.PhasePrompt)
	s.wants(t, &blocked)
}

// What the last command was refused is dealt with when the next one begins, unless it is refused the same.
func TestDenialOfTheCommandBefore(t *testing.T) {
	s := newStory(t)
	first := s.hearing(wire.VerbRun, "1")
	s.begins("1")
	s.box.refused(blocked)
	s.hush(first)
	s.becomes(wire.PhasePrompt)

	second := s.hearing(wire.VerbRun, "2")
	s.begins("2")
	s.wants(t, nil)
	s.box.refused(blocked) // within a second of the first: nobody is woken twice for one command
	s.wants(t, &blocked)
	told := s.Situation(wire.Party{}).Denials
	s.box.refused(blocked)
	if now := s.Situation(wire.Party{}).Denials; now != told {
		t.Errorf("the same refusal is told again: %d times after %d", now, told)
	}
	s.hush(second)
	s.becomes(wire.PhasePrompt)

	third := s.hearing(wire.VerbRun, "3")
	s.begins("3")
	s.hush(third)
	s.becomes(wire.PhasePrompt)
	s.wants(t, nil)
}

// A person types the command; the daemon hears of its beginning after the connection that it made.
func TestDenialOfATypedCommand(t *testing.T) {
	s := newStory(t)
	s.box.refused(blocked)
	s.wants(t, nil)
	s.tells(wire.Event{Kind: wire.EventBegun, By: "person:alice"})
	s.becomes(wire.PhaseRunning)
	s.wants(t, &blocked)
	s.dealt()
	s.wants(t, nil)
	s.becomes(wire.PhasePrompt)
	s.becomes(wire.PhaseRunning)
	s.wants(t, nil)
}

// A session in which nothing runs needs nothing when another one's connection is refused.
func TestDenialOfAnotherSession(t *testing.T) {
	s := newStory(t)
	h := s.hearing(wire.VerbWait, "")
	s.box.refused(blocked)
	s.wants(t, nil)
	if got := s.heard(t.Context(), h); len(got) != 0 {
		t.Errorf("a wait at the prompt is told of %v", got)
	}
	s.hush(h)
}

// Of more blocked connections than are remembered a Result has the newest, and says so.
func TestDeniedIsTruncated(t *testing.T) {
	w := newWorld(t, sandboxtest.Options{})
	d := w.start()
	w.create(d, "demo")
	w.run(d, "true")
	b := d.boxOf()
	l := b.live("main")
	h := l.hearing(wire.VerbRun, wire.NewOp())
	defer l.hush(h)
	for _, n := range []int{maxRefusals, maxRefusals + 1} {
		for i := range n {
			b.refused(wire.Denial{Host: fmt.Sprintf("h%d.test", i), Port: 443})
		}
		r := &wire.Result{}
		l.fillDenied(w.ctx(), h, r)
		if got := slices.Contains(r.Notes, wire.NoteDenied); len(r.Denied) != maxRefusals || got != (n > maxRefusals) {
			t.Errorf("of %d: %d, notes %v", n, len(r.Denied), r.Notes)
		}
	}
}
