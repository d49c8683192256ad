package sshd

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Sizes and offsets in messages of sock_diag(7).
const (
	diagHeader  = 16 // struct nlmsghdr
	diagRequest = 56 // struct inet_diag_req_v2
	diagID      = 8  // offset in it of struct inet_diag_sockid
	diagAnswer  = 72 // struct inet_diag_msg
	diagUser    = 64 // offset in it of the user
)

// peerIsOurs reports whether the peer of c is a socket on this machine of the admin or of root. The
// kernel reports the user, and the peer cannot influence it. If the user is unknown, peerIsOurs
// returns false.
func peerIsOurs(c net.Conn) bool {
	local, ok1 := c.LocalAddr().(*net.TCPAddr)
	remote, ok2 := c.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 || !local.IP.IsLoopback() || !remote.IP.IsLoopback() {
		return false // a container or another machine, which has other users
	}
	uid, err := userOfTCP(remote.AddrPort(), local.AddrPort())
	return err == nil && (uid == 0 || uid == uint32(os.Geteuid()))
}

// userOfTCP asks the kernel for the user of the connected socket on this machine that is bound to
// local (sock_diag(7)).
func userOfTCP(local, remote netip.AddrPort) (uid uint32, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC,
		unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, diagnose(local, remote), 0,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 4096)
	// The answer is ready when sendto returns.
	n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	if n < diagHeader+diagAnswer || binary.NativeEndian.Uint16(
		answer[4:]) != unix.SOCK_DIAG_BY_FAMILY {
		return 0, fmt.Errorf("no socket from %v to %v", local, remote)
	}
	return binary.NativeEndian.Uint32(answer[diagHeader+diagUser:]), nil
}

// diagnose returns the request for one socket.
func diagnose(local, remote netip.AddrPort) []byte {
	from, to := local.Addr().Unmap(), remote.Addr().Unmap()
	b := make([]byte, diagHeader+diagRequest)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[diagHeader:]
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_TCP
	if from.Is6() {
		r[0] = unix.AF_INET6
	}
	const anyState = 0xffffffff
	binary.NativeEndian.PutUint32(r[4:], anyState)
	id := r[diagID:]
	binary.BigEndian.PutUint16(id, local.Port())
	binary.BigEndian.PutUint16(id[2:], remote.Port())
	copy(id[4:20], from.AsSlice())
	copy(id[20:36], to.AsSlice())
	const noCookie = 0xffffffff
	binary.NativeEndian.PutUint32(id[40:], noCookie)
	binary.NativeEndian.PutUint32(id[44:], noCookie)
	return b
}
