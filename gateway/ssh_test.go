package gateway_test

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// sshRun runs a command in a sandbox, past the hub.
func sshRun(t *testing.T, peer sandbox.Peer, command string) {
	t.Helper()
	conn, err := connect.SSH(t.Context(), peer)
	if err != nil {
		t.Fatal(err)
	}
	client := conn.Client()
	defer client.Close()
	s, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if out, err := s.CombinedOutput(command); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}
