package sshd

import (
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Two people with real ssh clients: one owns the sandbox, the other has a share.
func TestShareBetweenPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	agent := w.shared()
	if _, err := agent.Request(t.Context(),
		wire.Request{Verb: wire.VerbRun, Text: "echo hel''lo"}); err != nil {
		t.Fatal(err)
	}
	alice := gateway.Principal{Name: "alice", Kind: wire.Person, Rights: wire.RightDrive}
	share := func(rights wire.Rights) {
		t.Helper()
		if err := w.hub.Share(t.Context(), alice, "demo", "bob", rights); err != nil {
			t.Fatal(err)
		}
	}
	says := func(s *seat, all ...string) {
		t.Helper()
		s.until("says "+strings.Join(all, ", "), func() bool {
			for _, one := range all {
				if !strings.Contains(s.status(), one) {
					return false
				}
			}
			return true
		})
	}

	// To watch: everything else is denied, with a message.
	share(wire.RightWatch)
	guest := w.sit("bob", "demo@127.0.0.1")
	guest.sees("hello")
	says(guest, "you: watching", "^]d leave")
	guest.types("x")
	says(guest, "you may only watch")
	for _, args := range [][]string{{"demo@127.0.0.1", "true"}, {"-tt", "demo@127.0.0.1", "true"},
		{"-s", "demo@127.0.0.1", "sftp"},
		{"-W", "127.0.0.1:1", "demo@127.0.0.1"}, {"-tt", "demo~new@127.0.0.1"},
		{"-N", "-o", "ExitOnForwardFailure=yes", "-R", "0:127.0.0.1:1", "demo@127.0.0.1"}} {
		out, err := w.ssh("bob", args...).CombinedOutput()
		if err == nil {
			t.Errorf("%q: %s", args, out)
		}
		if args[0] != "-N" && args[0] != "-W" &&
			!strings.Contains(string(out), "shared with you without") &&
			!strings.Contains(string(out), "only watch") {
			t.Errorf("%q is refused by %q", args, out)
		}
	}
	guest.types("\x1dd")
	if got := guest.leaves(); got != 0 {
		t.Errorf("exit status %d", got)
	}

	// To drive: people ask each other for the keyboard, but the owner takes it.
	share(wire.RightDrive)
	guest = w.sit("bob", "demo@127.0.0.1")
	guest.sees("hello")
	owner := w.sit("alice", "demo@127.0.0.1")
	owner.sees("hello")
	guest.types("\x1dt")
	says(guest, "the keyboard is yours")
	guest.types("echo from the guest\r")
	owner.sees("from the guest")
	owner.types("\x1dt")
	says(owner, "the keyboard is yours")
	says(guest, "person:alice took the keyboard")
	guest.types("\x1dt")
	says(guest, "you asked person:alice for the keyboard")
	says(owner, "person:bob asks for the keyboard", "^]g give", "^]n not now")
	owner.types("\x1dn")
	says(guest, "person:alice keeps the keyboard for now")
	guest.types("\x1dt")
	says(owner, "person:bob asks for the keyboard")
	owner.types("\x1dg")
	says(guest, "the keyboard is yours")
	// Only the keyboard's holder types.
	guest.types("echo it is m''ine\r")
	owner.sees("it is mine")

	// A paste with a rejected piece is dropped whole.
	owner.types("\x1b[200~echo pas")
	owner.types("ted\r\x1b[201~")
	says(owner, "bytes of the paste were dropped: person:bob holds the keyboard")
	guest.types("echo no pa''ste\r")
	owner.sees("no paste")
	if strings.Contains(owner.text(), "pasted") {
		t.Errorf("some of the paste arrived:\n%s", owner.text())
	}

	// In private mode.
	guest.types("\x1dp")
	says(guest, "PRIVATE")
	says(owner, "PRIVATE")
	guest.types("echo sec''ret\r")
	guest.sees("secret")
	guest.types("\x1dp")
	says(guest, "no longer private")
	guest.types("\r")
	guest.until("is shown no secret", func() bool {
		return !strings.Contains(guest.text(), "secret") &&
			!strings.Contains(guest.text(), "sec''ret")
	})
	guest.types("echo pub''lic\r")
	owner.sees("public")
	if all := owner.bytes(); strings.Contains(all, "secret") || strings.Contains(all, "sec''ret") {
		t.Error("the owner was sent the secret")
	}

	// Unsharing takes effect at once.
	if _, err := w.hub.Unshare(t.Context(), alice, "demo", "bob"); err != nil {
		t.Fatal(err)
	}
	if got := guest.leaves(); got != wire.ExitTransport ||
		!strings.Contains(guest.text(), "demo is no longer shared with you") {
		t.Errorf("exit status %d:\n%s", got, guest.text())
	}
	out, err := w.ssh("bob", "demo@127.0.0.1", "true").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no sandbox demo for you") {
		t.Errorf("%s", out)
	}
	owner.types("\x1dd")
	owner.leaves()
}
