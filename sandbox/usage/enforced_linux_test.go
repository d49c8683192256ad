package usage

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A container without the limits that were requested is rejected. This process is one: no control
// group of its own has the name of a container.
func TestLimitsThatTheEngineIgnores(t *testing.T) {
	limits := sandbox.Limits{Memory: 64 << 20, PIDs: 100, CPUs: 1}
	err := Enforced(os.Getpid(), "0123456789abcdef", limits)
	if !errors.Is(err, sandbox.ErrUnsupported) ||
		!strings.Contains(err.Error(), "without those of memory, processes, cpus") {
		t.Errorf("got error %v", err)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if err := Enforced(gone.Process.Pid, "0123", limits); !errors.Is(err, sandbox.ErrUnsupported) ||
		!strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("of a process that ended: got error %v", err)
	}
}
