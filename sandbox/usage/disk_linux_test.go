package usage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Walk counts each file once, wherever it is, and nothing else.
func TestWalk(t *testing.T) {
	root := t.TempDir()
	write := func(name string, size int) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write("a", 1<<20)
	must(os.Link(filepath.Join(root, "a"), filepath.Join(root, "same")))
	must(os.Mkdir(filepath.Join(root, "d"), 0o700))
	write("d/b", 1<<20)
	must(os.Symlink("/usr", filepath.Join(root, "d", "usr"))) // not followed
	must(unix.Mkfifo(filepath.Join(root, "d", "fifo"), 0o600))
	must(os.WriteFile(filepath.Join(root, "holes"), nil, 0o600))
	must(os.Truncate(filepath.Join(root, "holes"), 1<<40))
	upTo := func(most sandbox.DiskUsage) error {
		return (&Walk{Limit: most}).Tree(t.Context(), root)
	}
	all := func() sandbox.DiskUsage {
		t.Helper()
		w := &Walk{}
		must(w.Tree(t.Context(), root))
		return w.DiskUsage
	}
	if got := all(); got.Files != 6 || got.Bytes < 2<<20 || got.Bytes > 2<<20+64<<10 {
		t.Errorf("got %+v, want 6 files of 2 MiB and a little", got)
	}
	if err := upTo(sandbox.DiskUsage{Bytes: 1 << 20}); !errors.Is(err, ErrLimit) {
		t.Errorf("more bytes than were asked for: got error %v", err)
	}
	if err := upTo(sandbox.DiskUsage{Files: 3}); !errors.Is(err, ErrLimit) {
		t.Errorf("more files than were asked for: got error %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("changed my mind")
	cancel(cause)
	if err := (&Walk{}).Tree(ctx, root); !errors.Is(err, cause) {
		t.Errorf("cancelled: got error %v", err)
	}

	// Deeper than a path can be long, with a file beside each directory, so that not all are
	// reached from the last one.
	const deep = 3000
	name := strings.Repeat("n", 20)
	at, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(err)
	for range deep {
		must(unix.Mkdirat(at, name, 0o700))
		must(unix.Mkdirat(at, "other", 0o700))
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(err)
		unix.Close(at)
		at = next
	}
	fd, err := unix.Openat(at, "found", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(err)
	_, err = unix.Write(fd, make([]byte, 1<<20))
	must(errors.Join(err, unix.Close(fd), unix.Close(at)))
	before := len(openFiles(t))
	if got := all(); got.Files != 6+2*deep+1 || got.Bytes < 3<<20 {
		t.Errorf("nested: got %+v, want %d files of 3 MiB", got, 6+2*deep+1)
	}
	if after := len(openFiles(t)); after != before {
		t.Errorf("got %d descriptors, want %d as before", after, before)
	}
}

func openFiles(t *testing.T) []os.DirEntry {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Removed counts removed files that a process has open, or only mapped, and each once.
func TestRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may see what a process has mapped")
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary files are in memory, which does not count: set TMPDIR")
	}
	const size = 1 << 20
	hidden := func(keep bool) {
		t.Helper()
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(m) })
		if err := os.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
		if keep {
			t.Cleanup(func() { f.Close() })
		} else {
			f.Close()
		}
	}
	count := func() sandbox.DiskUsage {
		w := &Walk{}
		w.Removed([]int{os.Getpid()})
		return w.DiskUsage
	}
	before := count()
	hidden(true)
	hidden(false)
	after := count()
	if after.Files != before.Files+2 || after.Bytes < before.Bytes+2*size {
		t.Errorf("got %+v, before %+v; want two files of %d bytes more", after, before, size)
	}
}
