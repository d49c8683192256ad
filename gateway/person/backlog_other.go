//go:build !linux

package person

import "syscall"

// LimitBacklog does nothing: only Linux is known to buffer so much for a slow client.
func LimitBacklog(syscall.RawConn) {}
