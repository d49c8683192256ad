package session

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestDeadAreForgotten lets more sessions end than may be kept. Those that ended first are removed.
// One that Begin started stays.
func TestDeadAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		m := newMemorySet(t, Options{MaxSessions: most})
		defer m.close()
		die := func() {
			m.last().die(Exit{})
			<-time.After(time.Second) // synthetic time: they end one after the other
		}
		if err := m.Begin(t.Context(), "entrypoint",
			wire.Start{Argv: []string{"postgres"}}); err != nil {
			t.Fatal(err)
		}
		die()
		for i := range 3 * most {
			c := m.dial(
				wire.Attach{Session: fmt.Sprint("s", i), Create: true, Party: agent("alice")},
			)
			die()
			c.leave()
		}
		var names []string
		for _, info := range m.List() {
			names = append(names, info.Name)
		}
		if got, want := fmt.Sprint(names), "[entrypoint s5 s6 s7 s8]"; got != want {
			t.Errorf("sessions %s, want %s", got, want)
		}
	})
}

// TestReviveHasNoRoom runs a command in a dead session while the maximum number of sessions is
// alive.
func TestReviveHasNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{MaxSessions: 1})
		defer m.close()
		a := m.dial(wire.Attach{Session: "a", Create: true, Party: agent("alice")})
		m.last().die(Exit{})
		synctest.Wait()
		m.dial(wire.Attach{Session: "b", Create: true, Party: agent("alice")})
		r, err := a.Request(t.Context(), wire.Request{Verb: wire.VerbRun, Text: "true"})
		if err == nil && r.Result != nil && r.Result.Error != nil {
			err = r.Result.Error
		}
		if codeOf(err) != wire.CodeLimitSessions {
			t.Errorf("got %+v, %v, want %s", r.Result, err, wire.CodeLimitSessions)
		}
	})
}

// TestAskerWithTwoStreams asks for the keyboard on one of an agent's two streams, and closes that
// stream. Then no party asks any more.
func TestAskerWithTwoStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		defer m.close()
		bob := m.dial(wire.Attach{Session: "main", Create: true, Party: human("bob")})
		one := m.dial(wire.Attach{Session: "main", Party: agent("alice")})
		m.dial(wire.Attach{Session: "main", Party: agent("alice")})
		if _, err := bob.ask(); err != nil {
			t.Fatal(err)
		}
		if _, err := one.ask(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := bob.asks(); got != "agent:alice" {
			t.Fatalf("%q asks", got)
		}
		one.leave()
		<-time.After(time.Minute) // after the time in which it could resume
		if got := bob.asks(); got != "" {
			t.Errorf("%s has gone, and asks", got)
		}
	})
}
