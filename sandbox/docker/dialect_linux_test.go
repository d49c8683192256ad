package docker

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/system"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A container without the limits that were requested is rejected. This process is one: no control
// group of its own has the name of a container.
func TestLimitsThatTheEngineIgnores(t *testing.T) {
	var podman facts
	podman.adapt(system.Info{CgroupVersion: "1"})
	limits := sandbox.Limits{Memory: 64 << 20, PIDs: 100, CPUs: 1}
	err := podman.enforces(os.Getpid(), "0123456789abcdef", limits)
	if !errors.Is(err, sandbox.ErrUnsupported) ||
		!strings.Contains(err.Error(), "without those of memory, processes, cpus") {
		t.Errorf("got error %v", err)
	}
	for name, f := range map[string]facts{"Docker": {},
		"remote": {compatible: true, remote: true}} {
		if err := f.enforces(os.Getpid(), "0123456789abcdef", limits); err != nil {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if err := podman.enforces(gone.Process.Pid, "0123", limits); !errors.Is(
		err, sandbox.ErrStopped) {
		t.Errorf("of a process that ended: got error %v", err)
	}
}
