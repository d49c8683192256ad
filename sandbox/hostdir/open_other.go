//go:build unix && !linux

package hostdir

import (
	"os"

	"golang.org/x/sys/unix"
)

const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

// rootOf opens the directory at path. No sandbox mounts it: the engine of a daemon on this system
// is on another machine.
func rootOf(_ *os.File, path string) (*os.Root, error) { return os.OpenRoot(path) }
