package record

import (
	"os"

	"golang.org/x/sys/unix"
)

// punch gives the first n bytes of a file back to the file system; they read as zeros. The error
// wraps errors.ErrUnsupported if the file system has no holes.
func punch(file *os.File, n int64) error {
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, n)
}
