//go:build unix && !linux

package hostdir

import (
	"os"

	"golang.org/x/sys/unix"
)

const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

// rootOf opens the directory at path. The daemon does not run on this system, because its engine is
// on a Linux machine.
func rootOf(_ *os.File, path string) (*os.Root, error) { return os.OpenRoot(path) }
