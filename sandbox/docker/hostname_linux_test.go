package docker

import (
	"errors"
	"os"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// The host name of a sandbox changes, and never that of this machine or of another container.
func TestSetHostname(t *testing.T) {
	ours, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	b := testBackend(t)
	one, two := boot(t, b, sandbox.Spec{}), boot(t, b, sandbox.Spec{})
	pid, err := b.engine.running(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"of a process that is not the container's": machine.SetHostname(os.Getpid(), one.Ref, "wrong"),
		"of another container's":                   machine.SetHostname(pid, two.Ref, "wrong"),
		"without a process":                        machine.SetHostname(0, one.Ref, "wrong"),
		"without a container":                      machine.SetHostname(pid, "", "wrong"),
	} {
		if !errors.Is(err, sandbox.ErrStopped) && !errors.Is(err, sandbox.ErrUnsupported) {
			t.Errorf("%s: got %v, want an error", name, err)
		}
	}
	want := "right"
	if err := b.SetHostname(t.Context(), one, want); errors.Is(err, sandbox.ErrUnsupported) &&
		os.Geteuid() != 0 {
		want = one.ID // a daemon that is not root cannot
	} else if err != nil {
		t.Fatal(err)
	}
	if got := mustSh(t, login(t, b, one), "hostname"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := mustSh(t, login(t, b, two), "hostname"); got != two.ID {
		t.Errorf("got %q in another container, want its ID %q", got, two.ID)
	}
	if got, err := os.Hostname(); got != ours || err != nil {
		t.Errorf("got %q, %v on this machine, want %q as before", got, err, ours)
	}
}
