package sshd

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The status line counts other sessions that ask. A key goes to them, one after the other, on the
// same connection; what is typed after the switch goes there.
func TestPersonGoesToOthers(t *testing.T) {
	w := newWorld(t, worldOptions{alert: "desktop"})
	for _, name := range []string{"demo", "one", "two"} {
		w.sandbox(name)
	}
	ask := func(name string) {
		t.Helper()
		at, err := w.hub.Sessions.Shared(t.Context(), aliceAgent,
			wire.Target{Sandbox: name, Session: "main"}, attach.JoinOptions{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := at.Request(t.Context(), wire.Request{Verb: wire.VerbRun,
			Text: "read -p '" + name + " asks: ' a; echo \"" + name + " got <$a>\""}); err != nil {
			t.Fatal(err)
		}
	}
	s := w.sit("alice", "demo@127.0.0.1")
	s.sees("root@demo")
	s.types("\x1do")
	s.until("nobody asks",
		func() bool { return strings.Contains(s.status(), "no other session asks") })
	ask("one")
	s.until("one asks", func() bool { return strings.Contains(s.status(), "1 other asks   ^]o go") })
	alert := "\a\x1b]9;one~main asks for an answer\x1b\\"
	if n := strings.Count(s.bytes(), alert); n != 1 || strings.Count(s.bytes(), "\a") != 1 {
		t.Errorf("%d alerts in %q", n, s.bytes())
	}
	ask("two")
	s.until("two ask", func() bool { return strings.Contains(s.status(), "2 others ask   ^]o go") })
	s.types("\x1do")
	s.sees("one asks:")
	s.until("where", func() bool { return strings.Contains(s.status(), "one~main") })
	s.types("\x1dtfirst\r")
	s.sees("one got <first>")
	s.types("\x1do")
	s.sees("two asks:")
	s.types("\x1dtsecond\r")
	s.sees("two got <second>")
	s.types("\x1dd")
	if status := s.leaves(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}
