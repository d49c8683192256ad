package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A daemon of an ordinary user that could have no limits says so, and what to do.
func TestCheckManager(t *testing.T) {
	unified := groupsRoot
	if _, err := os.Stat(unified + "/cgroup.controllers"); err != nil {
		unified += "/unified" // of a machine with both versions
	}
	with := t.TempDir()
	if err := os.WriteFile(filepath.Join(with, "bus"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, groups, dir, want, hint string }{
		{"version 1", t.TempDir(), with, "version 1 of control groups",
			"systemd.unified_cgroup_hierarchy=1"},
		{"no service manager", unified, t.TempDir(), "service manager", "loginctl enable-linger"},
		{"no session", unified, "", "service manager", "loginctl enable-linger"},
		{"no control groups", "/no/such/dir", with, "no such file", ""},
		{"all", unified, with, "", ""},
	} {
		err := checkManager(tt.groups, tt.dir)
		if (err == nil) != (tt.want == "") || err != nil &&
			(!strings.Contains(err.Error(), tt.want) ||
				!strings.Contains(sandbox.HintOf(err), tt.hint)) {
			t.Errorf("%s: got %v (%s)", tt.name, err, sandbox.HintOf(err))
		}
	}
}
