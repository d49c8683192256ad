package session

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestWatcherVerbs sends every request as a party that may only watch, while a program runs and
// after the shell has ended. Requests that drive the session return denied and do not reach the
// terminal. Requests that read it are answered.
func TestWatcherVerbs(t *testing.T) {
	requests := []struct {
		request wire.Request
		denied  bool
	}{
		{wire.Request{Verb: wire.VerbRun, Text: "true"}, true},
		{wire.Request{Verb: wire.VerbRun, Text: "true", Hold: true}, true},
		{wire.Request{Verb: wire.VerbType, Text: "x"}, true},
		{wire.Request{Verb: wire.VerbType, Text: "x", Answer: true}, true},
		{wire.Request{Verb: wire.VerbKeys, Keys: []string{"^C"}}, true},
		{wire.Request{Verb: wire.VerbInterrupt}, true},
		{wire.Request{Verb: wire.VerbTake}, true},
		{wire.Request{Verb: wire.VerbTake, Ask: true}, true},
		{wire.Request{Verb: wire.VerbKeep}, true},
		{wire.Request{Verb: wire.VerbPrivate, On: true}, true},
		{wire.Request{Verb: wire.VerbClose}, true},
		{wire.Request{Verb: wire.VerbClose, Session: "main"}, true},
		{wire.Request{Verb: wire.VerbPrivate}, false}, // it is not on
		{wire.Request{Verb: wire.VerbGive}, false},    // it does not hold the keyboard
		{wire.Request{Verb: wire.VerbResize, Cols: 40, Rows: 10}, false},
		{wire.Request{Verb: wire.VerbWait, TimeoutMS: 1}, false},
		{wire.Request{Verb: wire.VerbList}, false},
		{wire.Request{Verb: wire.VerbScreen}, false},
		{wire.Request{Verb: wire.VerbTrace}, true},
		{wire.Request{Verb: wire.VerbCancel, Cancel: 99}, false},
	}
	for _, kind := range []wire.PartyKind{wire.Person, wire.Agent} {
		for _, state := range []string{"runs", "held by an agent", "dead"} {
			t.Run(string(kind)+", "+state, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newMemorySet(t, Options{})
					defer m.close()
					alice := m.dial(
						wire.Attach{Session: "main", Create: true, Party: agent("alice")},
					)
					defer alice.leave()
					bob := m.dial(
						wire.Attach{
							Session: "main",
							Party:   &wire.Party{Name: "bob", Kind: kind, Rights: wire.RightWatch},
						},
					)
					defer bob.leave()
					s, term := m.lookup("main"), m.last()
					holder := ""
					switch state {
					case "held by an agent":
						if _, err := alice.Request(t.Context(),
							wire.Request{Verb: wire.VerbTake}); err != nil {
							t.Fatal(err)
						}
						holder = "agent:alice"
					case "dead":
						term.die(Exit{Code: 3})
						if err := s.until(t.Context(),
							func() bool { return s.track.Phase() == wire.PhaseDead }); err != nil {
							t.Fatal(err)
						}
					}
					for _, test := range requests {
						reply, err := bob.Request(t.Context(), test.request)
						if got := errors.Is(err,
							&wire.Error{Code: wire.CodeDenied}); got != test.denied ||
							got && reply.Result != nil {
							t.Errorf(
								"%+v: got result %+v, error %v; want denied: %v",
								test.request,
								reply.Result,
								err,
								test.denied,
							)
						}
					}
					if err := bob.Input(t.Context(), []byte("y")); !errors.Is(
						err,
						&wire.Error{Code: wire.CodeDenied},
					) {
						t.Errorf("input: got error %v, want denied", err)
					}
					synctest.Wait()
					select {
					case p := <-term.in:
						t.Errorf("a watcher typed %q", p)
					default:
					}
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.keyboard.String() != holder || s.closed || m.last() != term ||
						len(term.sizes) > 0 ||
						s.keyboard.Private() != nil {
						t.Errorf(
							"a watcher changed the session: keyboard %q, closed %v, started "+
								"again %v, sizes %v, private %v",
							s.keyboard.String(),
							s.closed,
							m.last() != term,
							term.sizes,
							s.keyboard.Private() != nil,
						)
					}
				})
			})
		}
	}
}
