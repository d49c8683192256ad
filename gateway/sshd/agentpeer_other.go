//go:build !linux

package sshd

import "net"

// servedBySSHD cannot tell here, so any agent counts as a forwarded one: its keys are not trusted.
func servedBySSHD(net.Conn) bool { return true }
