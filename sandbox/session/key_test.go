package session

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestEchoIsSentFirst presses a key that changes the state. Its echo is sent before the events of
// state and input.
func TestEchoIsSentFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		bob := m.dial(wire.Attach{Session: "main", Create: true, Party: human("bob"), Quiet: true})
		eve := m.dial(wire.Attach{Session: "main", Party: watcher("eve"), Keep: true})
		s := m.lookup("main")
		waits := func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			_, news := s.track.Look(
				track.Look{Facts: Facts{Blocked: true}},
				s.momentLocked(s.console),
			)
			s.reportLocked(s.console, news)
		}
		key := func() {
			if err := bob.Input(t.Context(), []byte("y")); err != nil {
				t.Fatal(err)
			}
			<-m.last().in
		}
		key() // takes the keyboard, which all parties learn immediately
		<-time.After(2 * inputTime)
		if got := eve.events(wire.EventInput); len(got) != 1 || got[0].Bytes != 1 {
			t.Errorf("input events of one key: %+v", got)
		}

		waits()
		synctest.Wait()
		eve.forget()
		key()
		m.last().print("y")
		synctest.Wait()
		if got := eve.since(); got != "1" {
			t.Errorf("with the echo came %q", got)
		}
		<-time.After(lateness)
		synctest.Wait()
		if got := eve.since(); got != "1 input state:running" {
			t.Errorf("a moment later there was %q", got)
		}

		// Without an echo, or with a longer answer, the event still comes, and in order.
		waits()
		synctest.Wait()
		eve.forget()
		key()
		if _, err := eve.Request(t.Context(), wire.Request{Verb: wire.VerbList}); err != nil {
			t.Fatal(err)
		}
		if got := eve.since(); got != "input state:running" {
			t.Errorf("before the reply came %q", got)
		}
		waits()
		key()
		waits()
		synctest.Wait()
		if got := eve.since(); got != "input state:running state:waiting input state:running "+
			"state:waiting" {
			t.Errorf("events are %q", got)
		}

		// Typing causes one event per second, not one per key.
		eve.forget()
		began := time.Now()
		for time.Since(began) < 3*inputTime {
			key()
			m.last().print("y")
			<-time.After(20 * time.Millisecond)
		}
		<-time.After(inputTime)
		var n, bytes int
		for _, e := range eve.events(wire.EventInput) {
			n, bytes = n+1, bytes+e.Bytes
		}
		if n > 4 || bytes < 100 {
			t.Errorf("%d events tell of %d keys", n, bytes)
		}
		bob.leave()
		eve.leave()
		m.close()
	})
}

// forget clears the record of a side.
func (s *side) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.output, s.log = nil, nil
}

// since returns what arrived since then: the number of bytes, and the events.
func (s *side) since() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []string
	for _, x := range s.log {
		switch x := x.(type) {
		case uint64:
			words = append(words, "1")
		case wire.Event:
			word := string(x.Kind)
			if x.State != nil {
				word += ":" + string(x.State.Phase)
			}
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}
