//go:build !linux

package sshd

import "net"

// servedBySSHD cannot tell here: FirstRunOptions.Forwarded decides.
func servedBySSHD(net.Conn) bool { return false }
