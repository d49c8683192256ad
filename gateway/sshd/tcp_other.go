//go:build !linux

package sshd

import "syscall"

// quickAck does nothing: only Linux delays an acknowledgement so that it hurts a login, and only Linux can be told.
func quickAck(syscall.RawConn) {}

// limitBacklog does nothing: only Linux is known to let so much wait for a client that does not take it.
func limitBacklog(syscall.RawConn) {}
