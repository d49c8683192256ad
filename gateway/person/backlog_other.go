//go:build !linux

package person

import "syscall"

// LimitBacklog does nothing: only Linux is known to let so much wait for a client that does not take it.
func LimitBacklog(syscall.RawConn) {}
