package store

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// loopMounted mounts an ext4 file system in a file of that size, which needs root.
func loopMounted(t *testing.T, image, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			t.Fatalf("mount: %v: %s", err, out)
		}
		t.Skipf("no loop mounts here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// copyOf returns the present content of a disk: writes without a sync are only in the machine's
// memory.
func copyOf(t *testing.T, image string) string {
	t.Helper()
	to := image + ".later"
	in, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	return to
}

// R4: acknowledged writes survive a power cut. The disk is a file; a copy of it, made just after a
// Put has returned, is what a machine finds after a power cut at that moment.
func TestR4AcknowledgedWritesSurvivePowerLoss(t *testing.T) {
	root := t.TempDir()
	image := filepath.Join(root, "disk")
	if out, err := exec.Command("sh", "-c", "truncate -s 20M "+image+" && mkfs.ext4 -q "+
		image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	disk := filepath.Join(root, "before")
	loopMounted(t, image, disk)
	dir := filepath.Join(disk, "state")
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const rows = 20
	for i := range rows {
		row := Sandbox{ID: fmt.Sprintf("id%d", i), Name: fmt.Sprintf("name%d", i), Owner: "alice",
			State: "running", Since: time.Now(), Created: time.Now(),
			Spec: []byte("{}"), Instance: []byte("{}")}
		if err := s.Add(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	// A counterexample: writes without a sync are lost.
	if err := os.WriteFile(filepath.Join(dir, "unkept"), make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	after := filepath.Join(root, "after")
	loopMounted(t, copyOf(t, image), after)
	if _, err := os.Stat(filepath.Join(after, "state", "unkept")); err == nil {
		t.Error("a file that was not synced is there: this is no power cut")
	}
	again, err := Open(t.Context(), filepath.Join(after, "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	got, err := again.Sandboxes(t.Context())
	if err != nil || len(got) != rows {
		t.Errorf("after the power cut there are %d rows, %v; want %d", len(got), err, rows)
	}
}
