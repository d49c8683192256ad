package session

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func owner(name string) *wire.Party {
	return &wire.Party{Name: name, Kind: wire.Person, Rights: wire.RightDrive, Owner: true}
}

func (s *side) ask() (string, error) {
	r, err := s.Request(s.t.Context(), wire.Request{Verb: wire.VerbTake, Ask: true})
	return r.Keyboard, err
}

// asks returns the party that asks for the keyboard, by the last event.
func (s *side) asks() string {
	events := s.events(wire.EventAsk)
	if len(events) == 0 {
		return ""
	}
	return events[len(events)-1].By
}

func TestAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		bob := m.dial(wire.Attach{Session: "main", Create: true, Party: human("bob")})
		carl := m.dial(wire.Attach{Session: "main", Party: human("carl")})
		dora := m.dial(wire.Attach{Session: "main", Party: human("dora")})
		eve := m.dial(wire.Attach{Session: "main", Party: watcher("eve")})
		if now, err := bob.ask(); err != nil || now != "person:bob" {
			t.Fatalf("asking for a free one: %q, %v", now, err)
		}
		if now, err := carl.ask(); err != nil || now != "person:bob" {
			t.Fatalf("asking: %q, %v", now, err)
		}
		if _, err := dora.ask(); codeOf(err) != wire.CodeKeyboardHeld {
			t.Errorf("a second one asks: %v", err)
		}
		if _, err := eve.ask(); codeOf(err) != wire.CodeDenied {
			t.Errorf("a watcher asks: %v", err)
		}
		synctest.Wait()
		if got := bob.asks(); got != "person:carl" {
			t.Errorf("bob receives that %q asks", got)
		}
		// The holder refuses.
		if err := dora.do(wire.VerbKeep); err != nil || bob.asks() != "person:carl" {
			t.Errorf("another party refuses: %v", err)
		}
		if err := bob.do(wire.VerbKeep); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := carl.asks(); got != "" {
			t.Errorf("refused, and %q asks", got)
		}
		if err := bob.do(wire.VerbGive); err != nil {
			t.Fatal(err)
		}
		if got := m.holder(); got != "" {
			t.Errorf("given after a refusal: %q", got)
		}
		// The keyboard goes to the party that asked, and stays there.
		if err := bob.Input(t.Context(), []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := carl.ask(); err != nil {
			t.Fatal(err)
		}
		if err := bob.do(wire.VerbGive); err != nil {
			t.Fatal(err)
		}
		if err := dora.Input(t.Context(), []byte("y")); codeOf(err) != wire.CodeKeyboardHeld {
			t.Errorf("who types first: %v", err)
		}
		m.prompt()
		time.Sleep(time.Hour)
		if got := m.holder(); got != "person:carl" {
			t.Errorf("given to %q", got)
		}
		// If the holder leaves, the keyboard goes to the party that asks. A party that leaves stops
		// asking.
		if _, err := dora.ask(); err != nil {
			t.Fatal(err)
		}
		dora.leave()
		time.Sleep(time.Minute)
		if got := bob.asks(); got != "" {
			t.Errorf("%q has left and asks", got)
		}
		if _, err := bob.ask(); err != nil {
			t.Fatal(err)
		}
		carl.leave()
		time.Sleep(29 * time.Second)
		if got := m.holder(); got != "person:carl" {
			t.Errorf("in the grace of who holds it: %q", got)
		}
		time.Sleep(2 * time.Second)
		if got := m.holder(); got != "person:bob" {
			t.Errorf("after it: %q", got)
		}
		bob.leave()
		eve.leave()
		m.close()
	})
}

func TestOwnerTakesFromGuests(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	guest := m.dial(wire.Attach{Session: "main", Create: true, Party: human("guest")})
	defer guest.leave()
	boss := m.dial(wire.Attach{Session: "main", Party: owner("boss")})
	defer boss.leave()
	other := m.dial(wire.Attach{Session: "main", Party: owner("boss")})
	defer other.leave()
	if err := guest.do(wire.VerbTake); err != nil {
		t.Fatal(err)
	}
	if err := boss.Input(t.Context(), []byte("x")); codeOf(err) != wire.CodeKeyboardHeld {
		t.Errorf("the owner types: %v", err)
	}
	if err := boss.do(wire.VerbTake); err != nil {
		t.Errorf("the owner takes it from a guest: %v", err)
	}
	if err := guest.do(wire.VerbTake); codeOf(err) != wire.CodeKeyboardHeld {
		t.Errorf("the guest takes it back: %v", err)
	}
	if err := other.do(wire.VerbTake); codeOf(err) != wire.CodeKeyboardHeld {
		t.Errorf("equals take it from each other: %v", err)
	}
	if got := m.holder(); got != "person:boss" {
		t.Errorf("held by %q", got)
	}
}

// TestSizeComesBack checks that the session has the same size before and after people drive.
func TestSizeComesBack(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	alice := m.dial(wire.Attach{Session: "main", Create: true, Party: agent("alice")})
	defer alice.leave()
	size := func() [2]int {
		i := m.List()[0]
		return [2]int{i.Cols, i.Rows}
	}
	want := func(when string, cols, rows int) {
		t.Helper()
		if got := size(); got != [2]int{cols, rows} {
			t.Errorf("%s: %v, want %d×%d", when, got, cols, rows)
		}
	}
	want("nobody said", wire.DefaultCols, wire.DefaultRows)
	if _, err := alice.Request(t.Context(), wire.Request{Verb: wire.VerbResize, Cols: 132,
		Rows: 43}); err != nil {
		t.Fatal(err)
	}
	want("the agent said", 132, 43)
	eve := m.dial(
		wire.Attach{Session: "main", Party: watcher("eve"), Start: &wire.Start{Cols: 30, Rows: 10}},
	)
	defer eve.leave()
	_, _ = eve.Request(t.Context(), wire.Request{Verb: wire.VerbResize, Cols: 20, Rows: 5})
	want("a watcher said", 132, 43)
	bob := m.dial(
		wire.Attach{Session: "main", Party: human("bob"), Start: &wire.Start{Cols: 80, Rows: 24}},
	)
	defer bob.leave()
	carl := m.dial(
		wire.Attach{Session: "main", Party: human("carl"), Start: &wire.Start{Cols: 90, Rows: 30}},
	)
	defer carl.leave()
	want("a person joined", 132, 43)
	if err := bob.do(wire.VerbTake); err != nil {
		t.Fatal(err)
	}
	want("a person took it", 80, 24)
	for _, r := range []wire.Request{{Verb: wire.VerbResize, Cols: 0, Rows: 24},
		{Verb: wire.VerbResize, Cols: -1, Rows: -1}} {
		if _, err := bob.Request(t.Context(), r); codeOf(err) != wire.CodeUsage {
			t.Errorf("%d×%d: %v", r.Cols, r.Rows, err)
		}
	}
	if _, err := bob.Request(t.Context(), wire.Request{Verb: wire.VerbResize, Cols: 1<<32 - 1,
		Rows: 1<<32 - 1}); err != nil {
		t.Error(err)
	}
	want("4294967295×4294967295", 1000, 500)
	if _, err := carl.ask(); err != nil {
		t.Fatal(err)
	}
	if err := bob.do(wire.VerbGive); err != nil {
		t.Fatal(err)
	}
	want("handed to another", 90, 30)
	if err := carl.do(wire.VerbGive); err != nil {
		t.Fatal(err)
	}
	want("given back", 132, 43)
}

// TestPrivateEndsWithItsPerson breaks the connection of a person in private mode. Private mode
// lasts while the person may resume. No other party reads its output afterwards.
func TestPrivateEndsWithItsPerson(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		eve := m.dial(wire.Attach{Session: "main", Create: true, Party: watcher("daemon")})
		bob := m.dial(wire.Attach{Session: "main", Party: human("bob"), Quiet: true})
		on := func(s *side) {
			if _, err := s.Request(t.Context(),
				wire.Request{Verb: wire.VerbPrivate, On: true}); err != nil {
				t.Fatal(err)
			}
		}
		on(bob)
		m.last().print("one secret")
		synctest.Wait()
		if got := bob.text(); got != "one secret" {
			t.Errorf("the person reads %q", got)
		}
		bob.leave()
		m.last().print(", another")
		time.Sleep(29 * time.Second)
		if i := m.List()[0]; i.Private != "person:bob" || i.Offset != 0 {
			t.Errorf("in the grace: %+v", i)
		}
		again := m.dial(
			wire.Attach{Resume: bob.Attached().Resume, Party: human("bob"), Quiet: true},
		)
		synctest.Wait()
		if got := again.text(); got != "one secret, another" {
			t.Errorf("who came back reads %q", got)
		}
		again.leave()
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if i := m.List()[0]; i.Private != "" || i.State.LastLine != "" || i.Offset < 19 {
			t.Errorf("after it: %+v", i)
		}
		m.last().print("public")
		synctest.Wait()
		if got := eve.text(); strings.Contains(got, "secret") || strings.Contains(got, "another") ||
			!strings.HasSuffix(got, "public") {
			t.Errorf("read: %q", got)
		}
		later := m.dial(
			wire.Attach{
				Session: "main",
				Party:   watcher("later"),
				From:    wire.Offset{Word: wire.FromStart},
			},
		)
		synctest.Wait()
		if got := later.text(); got != eve.text() {
			t.Errorf("read later: %q, before %q", got, eve.text())
		}
		eve.leave()
		later.leave()
		m.close()
	})
}
