package oci

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A daemon of an ordinary user that could have no limits says so, and what to do.
func TestCheckManager(t *testing.T) {
	unified := "/sys/fs/cgroup"
	if _, err := os.Stat(unified + "/cgroup.controllers"); err != nil {
		unified += "/unified" // of a machine with both versions
	}
	none, err := checkManager(t.TempDir(), t.TempDir()), checkManager(unified, t.TempDir())
	for _, tt := range []struct {
		name, want, hint string
		err              error
	}{
		{"version 1", "version 1 of control groups", "systemd.unified_cgroup_hierarchy=1", none},
		{"no service manager", "service manager", "loginctl enable-linger", err},
	} {
		if tt.err == nil || !strings.Contains(tt.err.Error(), tt.want) ||
			!strings.Contains(sandbox.HintOf(tt.err), tt.hint) {
			t.Errorf("%s: got %v (%s)", tt.name, tt.err, sandbox.HintOf(tt.err))
		}
	}
	dir := t.TempDir()
	bus, err := net.Listen("unix", filepath.Join(dir, "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close()
	if err := checkManager(unified, dir); err != nil {
		t.Error(err)
	}
}
