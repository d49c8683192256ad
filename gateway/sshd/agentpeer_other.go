//go:build !linux

package sshd

import "net"

// servedBySSHD cannot tell here, so any agent counts as a forwarded one, whose keys are not trusted.
func servedBySSHD(net.Conn) bool { return true }
