package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// DirError says why a state directory is rejected, and what to do.
type DirError struct {
	Dir  string
	Why  string
	Hint string
}

func (e *DirError) Error() string {
	return fmt.Sprintf("state directory %s: %s; %s", e.Dir, e.Why, e.Hint)
}

// MakeDir makes the state directory, or checks an existing one. It contains keys and records, so it
// must be a directory of this user, not a symbolic link, and not accessible to others.
func MakeDir(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
		info, err = os.Lstat(dir)
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	refuse := func(hint, why string, args ...any) error {
		return &DirError{Dir: dir, Why: fmt.Sprintf(why, args...), Hint: hint}
	}
	const another = "choose another with --state"
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return refuse("use the path of the directory itself with --state", "is a symbolic link")
	case !info.IsDir():
		return refuse(another, "is not a directory")
	}
	if owner, ok := ownerOf(info); !ok || owner != os.Geteuid() {
		return refuse(another, "belongs to uid %d, the daemon runs as uid %d", owner, os.Geteuid())
	}
	switch mode := info.Mode().Perm(); {
	case mode&0o022 != 0:
		return refuse("check its files, then chmod 700 "+dir, "others can write to it (mode %04o)",
			mode)
	case mode&0o077 != 0:
		return refuse("chmod 700 "+dir, "others can read it (mode %04o)", mode)
	case mode&0o700 != 0o700:
		return refuse("chmod 700 "+dir, "its owner may not use it (mode %04o)", mode)
	}
	return nil
}

// LockedError means that another daemon uses the state directory.
type LockedError struct {
	Dir string
	Pid int // of the other daemon; 0 if unknown
}

func (e *LockedError) Error() string {
	if e.Pid == 0 {
		return fmt.Sprintf("state directory %s: another daemon uses it", e.Dir)
	}
	return fmt.Sprintf(
		"state directory %s: the daemon with pid %d uses it; stop that one or choose another "+
			"with --state", e.Dir, e.Pid)
}

const lockFile = "lock"

// holder returns the process ID of the last daemon that locked the file, 0 if it is not known.
func holder(f *os.File) int {
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

// Runs reports whether the daemon with this process ID uses the state directory dir: it holds the
// lock. A process that got the ID later does not, and neither does a daemon that was killed and is
// a zombie.
func Runs(dir string, pid int) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDONLY|noFollow, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return locked(f) && holder(f) == pid && pid > 0
}
