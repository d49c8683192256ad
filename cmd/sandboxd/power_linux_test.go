package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// R4: a machine that loses power at any moment finds its daemon and its sandboxes again. The state
// directory is on a disk in a file. The test continues with a copy of it, taken during the load.
func TestR4PowerLoss(t *testing.T) {
	m := newMachine(t)
	m.smallState()
	m.start()
	m.control("new " + small + "demo")
	before := m.list()["demo"]
	m.shell("demo", "echo kept >/file; sync /file")
	image := filepath.Join(m.dir, "disk")
	if out, err := exec.Command("cp", image, image+".later").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.kill()
	m.engine("kill", "sandboxd-"+before.ID)
	id, err := os.ReadFile(filepath.Join(m.state, "daemon_id"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c",
		fmt.Sprintf("umount %[1]s && mount -o loop %[2]s.later %[1]s", m.state, image),
	).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if again, err := os.ReadFile(filepath.Join(m.state, "daemon_id")); err != nil ||
		string(again) != string(id) {
		t.Fatalf("the daemon was %q, and is %q, %v: its containers have no daemon", id, again, err)
	}
	m.start()
	m.eventually("it is noticed", func() bool {
		return m.list()["demo"].State == lifecycle.Stopped
	})
	if got := m.shell("demo", "cat /file"); got != "kept\n" {
		t.Errorf("the file has %q", got)
	}
	if after := m.list()["demo"]; after.ID != before.ID ||
		!strings.HasPrefix(after.Image, "sandboxd/busybox") {
		t.Errorf("it was %+v, and is %+v", before, after)
	}
	m.nothingElse(false)
}
