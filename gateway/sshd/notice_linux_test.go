package sshd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/person"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// two joins session main of sandbox demo with its owner and with bob, who may drive it.
func (w *world) two() (owner, guest *seat) {
	w.t.Helper()
	w.sandbox("demo")
	if err := w.hub.Share(w.t.Context(), gateway.Principal{Name: "alice", Kind: wire.Person,
		Rights: wire.RightDrive}, "demo", "bob", wire.RightDrive); err != nil {
		w.t.Fatal(err)
	}
	w.shared()
	owner, guest = w.sit("alice", "demo@127.0.0.1"), w.sit("bob", "demo@127.0.0.1")
	owner.until("is in", func() bool { return strings.Contains(owner.status(), "more attached") })
	guest.until("is in", func() bool { return strings.Contains(guest.status(), "more attached") })
	return owner, guest
}

// A line that a person left unsent is removed when an agent's command runs: they get a notice, and
// see the command.
func TestPersonUnsentLine(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	s := w.sit("alice", "demo@127.0.0.1")
	s.until("is in", func() bool { return strings.Contains(s.status(), "demo~main") })
	s.types("rm -rf /srv/data ")
	s.sees("rm -rf /srv/data")
	s.types("\x1dg")
	s.until("gave it back", func() bool { return strings.Contains(s.status(), "given back") })
	if _, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "echo h''i"}); err != nil {
		t.Fatal(err)
	}
	s.sees("\nhi")
	s.until("notice of the line", func() bool {
		return strings.Contains(s.status(),
			"your unsent line was cleared by a command of agent:alice")
	})
	if text := s.text(); !strings.Contains(text, "rm -rf /srv/data ^C\n") ||
		!strings.Contains(text, "echo h''i\n") {
		t.Errorf("the terminal shows:\n%s", text)
	}
}

// A notice about the keyboard disappears when another party takes it.
func TestPersonNewerNotice(t *testing.T) {
	w := newWorld(t, worldOptions{})
	owner, guest := w.two()
	var took time.Duration
	// Notices also expire: one of these rounds must be faster, however busy the machine is.
	for range 5 {
		owner.types("\x1dt")
		owner.until("drives", func() bool {
			return strings.Contains(owner.status(), "the keyboard is yours")
		})
		owner.types("\x1dg")
		owner.until("gave it back", func() bool {
			return strings.Contains(owner.status(), "given back")
		})
		start := time.Now()
		guest.types("\x1dt")
		owner.until("sees the new holder",
			func() bool { return strings.Contains(owner.status(), "person:bob typing") })
		if took = time.Since(start); took < person.NoticeTime/2 {
			return
		}
	}
	t.Errorf("read for %v that the keyboard is given back", took)
}

// When a take interrupts a paste, a notice says how much was dropped, whatever notice comes first.
func TestPersonPasteCutByTake(t *testing.T) {
	const size = 150_000
	for _, tt := range []struct{ name, begin, end string }{{"bracketed", "\x1b[200~", "\x1b[201~"},
		{"not bracketed", "", ""}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			owner, guest := w.two()
			guest.types("\x1dt")
			guest.until("drives", func() bool {
				return strings.Contains(guest.status(), "the keyboard is yours")
			})
			guest.types("stty raw -echo; echo rea''dy; sleep 600\r")
			guest.sees("ready")
			go guest.types(tt.begin + strings.Repeat("x", size) + tt.end)
			owner.types("\x1dt")
			owner.until("drives", func() bool {
				return strings.Contains(owner.status(), "the keyboard is yours")
			})
			guest.until("notice of dropped bytes", func() bool {
				_, status, _ := strings.Cut(guest.status(), "~main   ")
				var n int
				_, _ = fmt.Sscanf(status, "%d bytes", &n)
				return n > size-20_000 && n <= size &&
					strings.Contains(status, "dropped: person:alice holds the keyboard")
			})
		})
	}
}
