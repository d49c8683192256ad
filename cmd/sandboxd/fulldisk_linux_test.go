package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"golang.org/x/sys/unix"
)

// smallState puts the state directory on a file system of 20 MB in a file, which needs root.
func (m *machine) smallState() {
	m.t.Helper()
	needRoot(m.t, "a mount")
	image := filepath.Join(m.dir, "disk")
	script := fmt.Sprintf(
		"truncate -s 20M %[1]s && mkfs.ext4 -q -m 0 %[1]s && mkdir %[2]s && mount -o loop %[1]s "+
			"%[2]s && chmod 700 %[2]s && rmdir %[2]s/lost+found", image, m.state)
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			m.t.Fatalf("mount: %v: %s", err, out)
		}
		m.t.Skipf("no loop mounts here: %v: %s", err, out)
	}
	m.t.Cleanup(func() { // before the directory goes, and after the daemon
		if err := unix.Unmount(m.state, unix.MNT_DETACH); err != nil {
			m.t.Errorf("unmount: %v", err)
		}
	})
	// The copy of the guest program for containers would take half of it.
	m.t.Cleanup(m.cleanUp)
}

// R8: while the daemon's disk is full, sessions go on, their recordings report what is missing, and
// operations that fail give the reason. When there is space again, everything works without a
// restart.
func TestR8FullDisk(t *testing.T) {
	m := newMachine(t)
	m.smallState()
	m.start()
	m.control("new " + small + "demo")
	id := m.list()["demo"].ID
	m.control("run -n demo -- echo before")
	ballast := filepath.Join(m.state, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	if out := m.control("run -n demo --max-output 0 -- seq 1 200000"); !strings.Contains(out,
		"\n200000\n") {
		t.Error("the session did not go on")
	}
	if notes := strings.Join(m.describe("demo").Notes, "\n"); !strings.Contains(notes,
		"session main: not fully recorded") || !strings.Contains(notes, "disk full") {
		t.Errorf("describe says %q", notes)
	}
	c, err := m.client(m.ctx(), "sandboxd")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := ask(m.ctx(), c, "new --json "+small+"second")
	if err != nil || s.code == 0 || !strings.Contains(s.out, `"code":"unavailable"`) ||
		!strings.Contains(s.out, "disk") && !strings.Contains(s.out, "no space") {
		t.Errorf("new: %+v, %v; want an error that names the disk", s, err)
	}
	if got := m.list(); len(got) != 1 || got["demo"].ID != id {
		t.Errorf("there are %v", got)
	}
	// A daemon that starts on a full disk reports it. It finds the sandbox when there is space.
	m.kill()
	if err := m.tryStart(); err == nil {
		t.Log("a daemon starts on a full disk")
		m.control("run -n demo -- echo on")
	} else if !strings.Contains(err.Error(), "full") && !strings.Contains(err.Error(), "no space") {
		t.Errorf("a daemon on a full disk ends with %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if !m.running() {
		m.start()
	}
	m.eventually("it is recorded again", func() bool {
		m.control("run -n demo -- echo after")
		return !strings.Contains(strings.Join(m.describe("demo").Notes, "\n"), "not fully recorded")
	})
	m.control("run -n demo -- echo later")
	log := m.control("log demo")
	for _, want := range []string{"before", "later"} {
		if !strings.Contains(log, want) {
			t.Errorf("the record lacks %q", want)
		}
	}
	m.control("new " + small + "second")
	m.control("stop second")
	m.control("rm -f second")
	m.nothingElse(false)
}

// R8: a disk that becomes read-only ends no session. Operations that must write fail and give the
// reason. After it is mounted again, the next daemon goes on.
func TestR8ReadOnlyDisk(t *testing.T) {
	m := newMachine(t)
	m.smallState()
	m.start()
	m.control("new " + small + "demo")
	id := m.list()["demo"].ID
	m.shell("demo", "echo kept >/file")
	m.control("run -n demo -- echo before")
	// As the kernel does when the disk fails: open files stay open, and cannot be written.
	if out, err := exec.Command("mount", "-o", "remount,abort",
		m.state).CombinedOutput(); err != nil {
		t.Logf("remount: %v: %s", err, out) // reports that it is read-only now
	}
	if err := os.WriteFile(filepath.Join(m.state, "x"), nil, 0o600); err == nil {
		t.Fatal("it can be written to")
	}
	if out := m.control("run -n demo -- echo during"); !strings.Contains(out, "during") {
		t.Errorf("the session did not go on: %q", out)
	}
	if got := m.shell("demo", "cat /file"); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	if notes := strings.Join(m.describe("demo").Notes, "\n"); !strings.Contains(notes,
		"not fully recorded") {
		t.Errorf("describe says %q", notes)
	}
	c, err := m.client(m.ctx(), "sandboxd")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, command := range []string{"new --json " + small + "second", "rm -f --json demo"} {
		if s, err := ask(m.ctx(), c, command); err != nil || s.code == 0 ||
			!strings.Contains(s.out, `"code":"unavailable"`) {
			t.Errorf("%s: %+v, %v", command, s, err)
		}
	}
	if got := m.list(); len(got) != 1 || got["demo"].State != lifecycle.Running {
		t.Errorf("there are %v", got)
	}
	m.kill()
	if err := m.tryStart(); err == nil {
		t.Error("a daemon starts on a disk that cannot be written to")
	} else if !strings.Contains(err.Error(), "read-only") &&
		!strings.Contains(err.Error(), "input/output") &&
		!strings.Contains(err.Error(), "structure needs") {
		t.Errorf("a daemon on a read-only disk ends with %v", err)
	}
	m.engine("kill", "sandboxd-"+id) // which has a directory of it mounted
	if err := unix.Unmount(m.state, 0); err != nil {
		t.Fatal(err)
	}
	m.eventually("the container has let go of it, too", func() bool {
		out, err := exec.Command("losetup", "-j", filepath.Join(m.dir, "disk")).Output()
		return err == nil && len(out) == 0
	})
	if out, err := exec.Command("sh", "-c",
		fmt.Sprintf("e2fsck -fy %[1]s; [ $? -le 1 ] && mount -o loop %[1]s %[2]s",
			filepath.Join(m.dir, "disk"), m.state)).CombinedOutput(); err != nil {
		t.Fatalf("repair: %v: %s", err, out)
	}
	m.start()
	m.eventually("it is noticed", func() bool {
		return m.list()["demo"].State == lifecycle.Stopped
	})
	m.control("start demo")
	if got := m.list()["demo"]; got.ID != id || got.State != lifecycle.Running {
		t.Errorf("it is %s, %s", got.ID, got.State)
	}
	if got := m.shell("demo", "cat /file"); got != "kept\n" {
		t.Errorf("afterwards the file has %q", got)
	}
	if out := m.control("run -n demo -- echo again"); !strings.Contains(out, "again") {
		t.Errorf("a new session: %q", out)
	}
}
