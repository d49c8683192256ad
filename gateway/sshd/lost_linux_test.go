package sshd

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// A client whose command ends with its sandbox gets the reason, and no exit status.
func TestLostCommandSaysWhy(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	session, err := w.dial("alice", "demo").NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	session.Stderr = &said
	if err := session.Start("echo begun; sleep 1000"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("%q, %v", line, err)
	}
	instances, err := w.backend.List(t.Context())
	if err != nil || len(instances) != 1 {
		t.Fatalf("%v, %v", instances, err)
	}
	if err := w.backend.Kill(t.Context(), instances[0]); err != nil {
		t.Fatal(err)
	}
	if err := session.Wait(); !errors.As(err, new(*ssh.ExitMissingError)) {
		t.Errorf("%v, want no exit status", err)
	}
	if got := said.String(); !strings.HasPrefix(got, "sandboxd: sandbox demo ") ||
		!strings.Contains(got, "it may have run") || strings.Count(got, "\n") != 1 {
		t.Errorf("it reads %q", got)
	}
}
