package sshd

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A person scrolls through all that a session printed, and looks for a text, while the session goes
// on. What they press meanwhile is not typed.
func TestPersonScrolls(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	if _, err := agent.Request(t.Context(), wire.Request{Verb: wire.VerbRun, Text: "clear; " +
		`for i in $(seq 5000); do [ $i = 1234 ] && printf '\e[31mNEE\e[1mDLE\e[0m '; ` +
		`echo line $i.; done; printf '\e]0;title\a\e[6n'; read -p 'Go on? ' x; echo "got <$x>"`}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"watch", "alice"} {
		s := w.sit(name, "demo@127.0.0.1")
		s.sees("Go on?")
		s.types("\x1d[")
		s.until("is at the end", func() bool {
			return strings.Contains(s.status(), " of 50") && strings.Contains(s.text(), "Go on?")
		})
		s.types("\x1b[5~\x1b[5~")
		s.until("is two pages up", func() bool {
			return strings.Contains(s.text(), "line 4960.") &&
				!strings.Contains(s.text(), "line 4970.")
		})
		s.types("/needl\x7f")
		s.until("reads the text", func() bool { return strings.Contains(s.status(), "/need") })
		s.types("le\r")
		s.sees("NEEDLE line 1234.")
		s.types("n")
		s.until("says that it is the first",
			func() bool { return strings.Contains(s.status(), "no earlier line has it") })
		s.types("/no such line\r")
		s.until("says that there is none",
			func() bool { return strings.Contains(s.status(), "not found") })
		s.types("g")
		s.sees("line 1.")
		s.types("\x1b[200~qqq\x1b[201~") // a paste is no command
		s.types("j")
		s.until("is a line down", func() bool {
			return !strings.Contains(s.text(), "line 1.\n") && strings.Contains(s.text(), "line 2.")
		})
		s.resize(60, 10)
		s.until("is smaller", func() bool { return strings.Contains(s.status(), "q back") })
		s.types("q")
		s.sees("Go on?")
		if name == "watch" {
			s.types("\x1dd")
			s.leaves()
			continue
		}
		s.types("\x1dt")
		s.until("has the keyboard", func() bool { return strings.Contains(s.status(), "is yours") })
		s.types("yes\r")
		s.sees("got <yes>")
	}
}

// A session that ends while a person scrolls shows its end. The prefix key's commands work.
func TestPersonScrollsAtTheEnd(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	s := w.sit("alice", "demo@127.0.0.1")
	s.sees("root@demo")
	s.types("\x1d[")
	s.until("scrolls", func() bool { return strings.Contains(s.status(), "lines ") })
	s.types("\x1dt")
	s.until("has the keyboard", func() bool { return strings.Contains(s.status(), "is yours") })
	s.types("\x1d[\x1d[")
	s.until("scrolls again", func() bool { return strings.Contains(s.status(), "lines ") })
	s.types("\x1dc\x1dg\x1d[")
	s.until("scrolls once more", func() bool { return strings.Contains(s.status(), "lines ") })
	if _, err := agent.Request(t.Context(), wire.Request{Verb: wire.VerbClose}); err != nil {
		t.Fatal(err)
	}
	s.leaves()
}
