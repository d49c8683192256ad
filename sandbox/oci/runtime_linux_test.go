package oci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// onlyRuntime is the runtime of a process of these tests; empty: the one that a daemon would take.
const onlyRuntime = "SANDBOXD_TEST_RUNTIME"

// With the runtime that this machine does not prefer, sandboxes are the same.
func TestOtherRuntime(t *testing.T) {
	again(t, "Posture", "Limits", "Mounts", "Links", "StartWithPipes", "Daemons", "Contract")
}

func TestOtherRuntimeAttacks(t *testing.T) { again(t, "Attacks") }

// again runs tests with the other runtime. Their mount namespace has no version 2 of control groups
// beside version 1, which crun may refuse.
func again(t *testing.T, tests ...string) {
	if os.Geteuid() != 0 {
		t.Skip("containers without an engine take root")
	}
	preferred, err := new(runtimes).find("")
	if err != nil {
		t.Fatal(err)
	}
	other := "crun"
	if preferred == other {
		other = "runc"
	}
	if _, err := exec.LookPath(other); err != nil {
		t.Fatalf("%v; scripts/setup test installs it", err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	guest, err := shared.guest()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--", "sh", "-c",
		`! test -e /sys/fs/cgroup/unified || umount -l /sys/fs/cgroup/unified && exec "$0" "$@"`,
		program, "-test.run=^Test("+strings.Join(tests, "|")+")$", "-test.v",
		"-test.timeout=10m")
	cmd.Env = append(os.Environ(), onlyRuntime+"="+other, "SANDBOXD_TEST_GUEST="+guest)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	if n := strings.Count(string(out), "\n--- PASS"); n != len(tests) {
		t.Errorf("%d tests passed with %s, not %d", n, other, len(tests))
	}
}

// A guest without a filter of system calls is noticed, although it makes one itself. Each start
// checks that it has another.
func TestFiltered(t *testing.T) {
	const mode, none = "Name:\tx\nSeccomp:\t2\n", "Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"
	for _, tt := range []struct {
		status, mine string
		least        int
		want         bool
	}{
		{none, none, 1, false},
		{mode + "Seccomp_filters:\t1\n", none, 1, true},
		{mode + "Seccomp_filters:\t1\n", none, 2, false},
		{mode + "Seccomp_filters:\t12\nx:\n", none, 2, true},
		{mode + "Seccomp_filters:\t2\n", mode + "Seccomp_filters:\t1\n", 2, false},
		{mode, none, 2, true}, // before Linux 5.9
		{mode, mode, 2, true},
	} {
		if got := filtered(tt.status, tt.mine, tt.least); got != tt.want {
			t.Errorf("%q in a daemon with %q, at least %d: got %v", tt.status, tt.mine, tt.least,
				got)
		}
	}
}

// A runtime that makes no container on a machine is not taken there.
func TestUsable(t *testing.T) {
	groups, path := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	_, err := new(runtimes).find("")
	if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "crun") ||
		!strings.Contains(err.Error(), "runc") {
		t.Errorf("without a runtime: %v", err)
	}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range runtimeNames {
		write(filepath.Join(path, name), "#!/bin/sh\n")
	}
	if err := os.Mkdir(filepath.Join(groups, "unified"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		controllers string
		crun        bool
	}{{"", true}, {"hugetlb rdma\n", false}} {
		write(filepath.Join(groups, "unified", "cgroup.controllers"), tt.controllers)
		err := usable("crun", groups)
		if (err == nil) != tt.crun ||
			err != nil && !strings.HasSuffix(err.Error(), "version 2: hugetlb rdma") {
			t.Errorf("crun with %q: %v", tt.controllers, err)
		}
		if err := usable("runc", groups); err != nil {
			t.Errorf("runc with %q: %v", tt.controllers, err)
		}
	}
}
