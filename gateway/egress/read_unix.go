//go:build unix

package egress

import "golang.org/x/sys/unix"

// readNow reads from a socket that does not block. The error is errNotReady if it would.
func readNow(fd uintptr, p []byte) (n int, err error) {
	for {
		switch n, err = unix.Read(int(fd), p); err {
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errNotReady
		default:
			return n, err
		}
	}
}
