package docker

import (
	"os"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestKeys(t *testing.T) {
	k, err := newKeys(wire.GuestConfig{Version: wire.Version, Name: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	b := &Backend{state: stateDir(t.TempDir())}
	if err := os.Mkdir(b.state.dir("s1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeJSON(b.state.keysPath("s1"), k); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(b.state.keysPath("s1")); err != nil || info.Mode() != 0o600 {
		t.Errorf("got mode %v, %v; want 0600", info.Mode(), err)
	}
	again, err := b.state.readKeys("s1")
	if err != nil {
		t.Fatal(err)
	}
	first, err := k.peer()
	if err != nil {
		t.Fatal(err)
	}
	second, err := again.peer()
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
	line, err := k.line()
	if err != nil || line[len(line)-1] != '\n' {
		t.Errorf("line: got %q, %v; want one line", line, err)
	}
	if err := os.WriteFile(b.state.keysPath("s1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.state.readKeys("s1"); err == nil {
		t.Error("damaged file: got no error")
	}
}
