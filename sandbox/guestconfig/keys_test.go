package guestconfig

import (
	"os"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestKeys(t *testing.T) {
	k, err := NewKeys(wire.GuestConfig{Version: wire.Version, Name: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	state := State(t.TempDir())
	if err := os.Mkdir(state.Dir("s1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := state.WriteKeys("s1", k); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(state.KeysPath("s1")); err != nil || info.Mode() != 0o600 {
		t.Errorf("got mode %v, %v; want 0600", info.Mode(), err)
	}
	again, err := state.ReadKeys("s1")
	if err != nil {
		t.Fatal(err)
	}
	first, err := k.Peer()
	if err != nil {
		t.Fatal(err)
	}
	second, err := again.Peer()
	if err != nil {
		t.Fatal(err)
	}
	if string(first.HostKeys[0].Marshal()) != string(second.HostKeys[0].Marshal()) ||
		len(second.Auth) != 1 {
		t.Error("keys read back differ from those written")
	}
	if k.Guest.HostKey == k.ClientKey {
		t.Error("host key and client key are the same")
	}
	line, err := k.Line()
	if err != nil || line[len(line)-1] != '\n' {
		t.Errorf("line: got %q, %v; want one line", line, err)
	}
	if err := os.WriteFile(state.KeysPath("s1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := state.ReadKeys("s1"); err == nil {
		t.Error("damaged file: got no error")
	}
}
