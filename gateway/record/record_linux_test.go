package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestGapIsAHoleOfTheSameLength(t *testing.T) {
	w, dir := create(t, Options{})
	appendAll(t, w, 0, "abc")
	appendAll(t, w, 1<<30, "def") // the guest's buffer has lost 1 GiB
	if err := w.Skip(1<<30+5, WhyQuota); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]interface {
		ReadAt([]byte, uint64) (int, error)
	}{"writer": w, "opened": reopen(t, dir, Options{})} {
		buf := make([]byte, 100)
		if n, err := r.ReadAt(buf, 1); n != 2 || err != nil {
			t.Errorf("%s: before the gap: %d, %v", name, n, err)
		}
		_, err := r.ReadAt(buf, 3)
		if diff := cmp.Diff(&GapError{From: 3, To: 1 << 30, Why: WhyLagged}, err); diff != "" {
			t.Errorf("%s: in the gap (-want +got):\n%s", name, diff)
		}
		if n, err := r.ReadAt(buf, 1<<30); string(buf[:n]) != "def" || err != nil {
			t.Errorf("%s: after the gap: %q, %v", name, buf[:n], err)
		}
		_, err = r.ReadAt(buf, 1<<30+4)
		if diff := cmp.Diff(&GapError{From: 1<<30 + 4, To: 1<<30 + 5, Why: WhyQuota},
			err); diff != "" {
			t.Errorf("%s: in the gap (-want +got):\n%s", name, diff)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, LogFile), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 > 1<<20 {
		t.Errorf("the log takes %d bytes of disk, want a sparse file", st.Blocks*512)
	}
}

func TestFullDiskLeavesAMarkedHole(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	mount := t.TempDir()
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=128k"); err != nil {
		if os.Getenv("SANDBOXD_TEST_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skipf("no mounts here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	dir := filepath.Join(mount, "main")
	w, err := Create(dir, Options{Begun: begun})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	appendAll(t, w, 0, "before ")
	ballast := filepath.Join(mount, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v, want ENOSPC", err)
	}
	big := bytes.Repeat([]byte("x"), 8192)
	if err := w.Append(w.End(), big); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("Append on a full disk: %v, want ENOSPC", err)
	}
	if err := w.Append(w.End(), []byte("lost")); err == nil {
		t.Fatal("Append on a full disk succeeded")
	}
	end := w.End()
	if want := uint64(7 + 8192 + 4); end != want {
		t.Errorf("End = %d, want %d", end, want)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	// The record tries again after its delay.
	w.wmu.Lock()
	w.again = time.Now()
	w.wmu.Unlock()
	appendAll(t, w, end, "after")
	got := content(t, w)
	if !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, "~~~~after") ||
		len(got) != int(end)+5 {
		t.Errorf("content = %.20q…%.20q, %d bytes", got, got[max(0, len(got)-20):], len(got))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := reopen(t, dir, Options{})
	if again := content(t, r); again != got {
		t.Errorf("after opening the content differs")
	}
	r.Close()
}
