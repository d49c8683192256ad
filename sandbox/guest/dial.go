package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// dialTurn is how long one attempt to connect waits for its turn, in seconds. It bounds how late a dial notices that ctx has ended.
const dialTurn = 1

// dial connects to the daemon's socket. Where others of the sandbox have filled the places in front of it, it waits for its turn
// behind them, as package net does not: connect(2) of a socket that does not block fails then with EAGAIN, and who tries again later
// finds the places filled again.
func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	for errors.Is(err, unix.EAGAIN) && ctx.Err() == nil {
		conn, err = dialBlocking(socket)
	}
	if err != nil {
		return nil, err
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.ErrUnsupported
	}
	return c, nil
}

// dialBlocking is one attempt, which takes dialTurn at most and fails with EAGAIN then.
func dialBlocking(socket string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), socket)
	defer f.Close()
	// For a socket of this kind it bounds the wait for a place (unix(7) does not say so; net/unix/af_unix.c does).
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: dialTurn}); err != nil {
		return nil, fmt.Errorf("connect %s: %w", socket, err)
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{})
	}
	if err != nil {
		return nil, fmt.Errorf("connect %s: %w", socket, err)
	}
	return net.FileConn(f)
}
