package agent_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var alice = gateway.Principal{Name: "alice", Kind: wire.Person}

// local runs a program of this machine.
func local(t testing.TB, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

// isCode reports whether err is of that kind.
func isCode(err error, code agent.Code) bool {
	return errors.Is(err, &wire.Error{Code: wire.Code(code)}) // of the hub, or of this library
}
