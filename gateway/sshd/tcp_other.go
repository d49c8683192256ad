//go:build !linux

package sshd

import "syscall"

// quickAck does nothing: only Linux has TCP_QUICKACK, and delays an ACK so that it slows a login.
func quickAck(syscall.RawConn) {}
