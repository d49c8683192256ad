package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox"
)

// doctor reports what another program finds in the same kind of container.
func TestFilterProbe(t *testing.T) {
	requireEngine(t)
	engine, err := newEngine(config.Load(config.Sources{}))
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	open, err := probeFilter(t.Context(), engine, sandbox.DefaultImage)
	if err != nil {
		t.Fatal(err)
	}
	const try = `
import ctypes, socket
try: socket.socket(40, socket.SOCK_STREAM); print("AF_VSOCK")
except OSError: pass
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 1, None) # io_uring_setup
if ctypes.get_errno() == 14: print("io_uring")`
	out, err := exec.Command("docker", "run", "--rm", "--label=sandboxd.probe=test",
		"--network=none", "--cap-drop=ALL",
		"--security-opt=no-new-privileges", sandbox.DefaultImage, "python3", "-c", try).Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range open {
		got = append(got, strings.Fields(o.name)[0])
	}
	if want := strings.Fields(string(out)); !slices.Equal(got, want) {
		t.Errorf("doctor finds %q open, python3 %q", got, want)
	}
	left, err := exec.Command("docker", "ps", "-aq",
		"--filter=label=sandboxd.probe=filter").Output()
	for late := time.Now().Add(time.Minute); err == nil && len(left) > 0 &&
		time.Now().Before(late); {
		// the image of another doctor
		left, err = exec.Command("docker", "ps", "-aq",
			"--filter=label=sandboxd.probe=filter").Output()
	}
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %s, %v", left, err)
	}
}

func TestReadProbe(t *testing.T) {
	for status, want := range map[int]int{filterTried: 0, filterTried | 1: 1, filterTried | 2: 1,
		filterTried | 3: 2} {
		if open, err := readProbe(status); err != nil || len(open) != want {
			t.Errorf("status %d: got %d open, %v; want %d", status, len(open), err, want)
		}
	}
	// not a status of the probe: it did not run
	for _, status := range []int{0, 1, 2, 3, 127, 126, 139, filterTried | 4} {
		if open, err := readProbe(status); err == nil {
			t.Errorf("status %d: got %v, want an error", status, open)
		}
	}
}
