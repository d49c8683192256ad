//go:build unix

package guestsock

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// listenIn listens on the socket name in dir, which replaces an old one. It binds through
// /proc/self/fd: an address holds 108 bytes, and state directories are often longer.
func listenIn(dir, name string) (*net.UnixListener, error) {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	if err := unix.Unlinkat(fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove old socket in %s: %w", dir, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd,
		name), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // the path may mean another directory by then
	if err := unix.Fchmodat(fd, name, 0o600, 0); err != nil {
		l.Close()
		return nil, fmt.Errorf("chmod socket in %s: %w", dir, err)
	}
	if err := setBacklog(l, backlog); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	return l, nil
}

// setBacklog changes how many connections wait to be accepted (listen(2)); package net asks for the
// system's maximum.
func setBacklog(l *net.UnixListener, n int) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), n) }), err)
}

// alive reports whether the peer is still connected, without consuming its data.
func alive(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ok = n > 0 || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
	})
	return err == nil && ok
}
