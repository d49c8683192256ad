package guestsock

import "golang.org/x/sys/unix"

// peerOf returns the process that connected a socket, or 0.
func peerOf(fd uintptr) int {
	cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}
