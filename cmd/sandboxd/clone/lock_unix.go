//go:build unix

package clone

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks a file, and reports false if another program has locked it. The end of this
// program unlocks it, too.
func lockFile(f *os.File) (locked bool, err error) {
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
		return true, nil
	case unix.EWOULDBLOCK, unix.EINTR:
		return false, nil
	default:
		return false, err
	}
}

func unlockFile(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }
