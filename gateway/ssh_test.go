package gateway

import (
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

func sandboxInstance(i lifecycle.Info) sandbox.Instance {
	return sandbox.Instance{Backend: sandboxtest.Name, ID: i.ID, Ref: i.ID}
}

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
