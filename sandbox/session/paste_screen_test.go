package session

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestBrokenPasteBehindAFlood ends the paste of a party that lost the keyboard, even if the screen
// is behind: the program requested brackets after much other output.
func TestBrokenPasteBehindAFlood(t *testing.T) {
	m := newMemorySet(t, Options{})
	defer m.close()
	guest := m.dial(wire.Attach{Session: "main", Create: true, Party: human("guest")})
	defer guest.leave()
	party := human("owner")
	party.Owner = true
	owner := m.dial(wire.Attach{Session: "main", Party: party})
	defer owner.leave()
	flood := strings.Repeat("\x1b[31mx\x1b[m\r\n", logSize/64) + "\x1b[?2004h"
	m.last().print(flood)
	for l := &m.lookup("main").log; ; {
		_, end := l.bounds()
		if end == uint64(len(flood)) {
			break
		}
		<-l.changed(end)
	}
	if err := guest.Input(t.Context(), []byte(pasteBegin+"half")); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Request(t.Context(), wire.Request{Verb: wire.VerbTake}); err != nil {
		t.Fatal(err)
	}
	if err := owner.Input(t.Context(), []byte("\r")); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for !strings.HasSuffix(got.String(), "\r") {
		got.Write(<-m.last().in)
	}
	if want := pasteBegin + "half" + pasteEnd + "\r"; got.String() != want {
		t.Errorf("the program reads %q, want %q", got.String(), want)
	}
}
