package sshd

import (
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// servedBySSHD reports whether the process that listens at the other end of c is an sshd. Then the
// agent is forwarded, whatever the environment says. SO_PEERCRED names the process that called
// listen(2).
func servedBySSHD(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	if err := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || peer == nil {
		return false
	}
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(int(peer.Pid)) + "/comm")
	name := strings.TrimSpace(string(comm))
	return err == nil && (name == "sshd" || name == "sshd-session") // the latter since OpenSSH 9.8
}
