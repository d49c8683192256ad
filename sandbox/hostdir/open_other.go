//go:build !linux

package hostdir

import (
	"os"

	"golang.org/x/sys/unix"
)

const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

// rootOf opens the directory that f was opened by. No daemon runs here: its engine is a Linux machine's.
func rootOf(_ *os.File, path string) (*os.Root, error) { return os.OpenRoot(path) }
