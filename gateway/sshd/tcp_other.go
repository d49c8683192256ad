//go:build !linux

package sshd

import "syscall"

// quickAck does nothing: only Linux delays an acknowledgement so that it hurts a login, and only Linux can be told.
func quickAck(syscall.RawConn) {}
