//go:build unix

package hostdir

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// noWait lets the opening of a FIFO return.
const noWait = unix.O_NONBLOCK

// openPlain opens a directory whose path contains no link, one part after the other.
func openPlain(path string) (*os.File, error) {
	fd, err := unix.Open("/", openFlags, 0)
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		next, err := unix.Openat(fd, part, openFlags|unix.O_NOFOLLOW, 0)
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		fd = next
	}
	return os.NewFile(uintptr(fd), path), nil
}

// identify returns which directory f is, without its path.
func identify(f *os.File) (Dir, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Dir{}, err
	}
	return Dir{Dev: uint64(st.Dev), Ino: st.Ino, UID: st.Uid, GID: st.Gid}, nil //nolint:unconvert // Dev is an int32 on other systems
}
