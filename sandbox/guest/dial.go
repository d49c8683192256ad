//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// dialTurn is how long, in seconds, one attempt to connect waits in the kernel. A dial notices the
// end of ctx that late at most.
const dialTurn = 1

// dial connects to the daemon's socket. If other processes of the sandbox have filled the backlog,
// it waits behind them for its turn. Package net does not: connect(2) of a non-blocking socket then
// fails with EAGAIN, and a later attempt finds the backlog full again.
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

// dialBlocking is one attempt, which takes at most dialTurn and then fails with EAGAIN.
func dialBlocking(socket string) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), socket)
	defer f.Close()
	// For a socket of this kind the option bounds the wait for the backlog (unix(7) does not say
	// so; net/unix/af_unix.c does).
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO,
		&unix.Timeval{Sec: dialTurn}); err != nil {
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
