//go:build !linux

package sshd

import "net"

// peerIsOurs works on Linux only.
func peerIsOurs(net.Conn) bool { return false }
