package workspace

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Read does not block on another file in place of a description, and follows no link out of the
// directory.
func TestReadTraps(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"fifo":      func(path string) error { return syscall.Mkfifo(path, 0o644) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"link out":  func(path string) error { return os.Symlink("/etc/passwd", path) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, File)); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		if w, err := Read(root, dir); err == nil {
			t.Errorf("%s: got %+v, want an error", name, w)
		}
		root.Close()
	}
}
