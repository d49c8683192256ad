//go:build !linux

package connect

import (
	"errors"
	"net"
	"os"
	"path/filepath"
)

// Pipe returns the ends of a buffered connection within this process, for a session stream. Both
// sides of a stream write before they read, so that the unbuffered net.Pipe would block. Not every
// system has pairs of sockets.
func Pipe() (near, far net.Conn, err error) {
	dir, err := os.MkdirTemp("", "sandboxd-") // only this user can enter it
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "stream"))
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	dialed := make(chan error, 1)
	go func() { // ends when l is closed
		var err error
		near, err = net.Dial("unix", l.Addr().String())
		dialed <- err
		if err != nil {
			l.Close()
		}
	}()
	far, err = l.Accept()
	if failed := <-dialed; failed != nil || err != nil {
		if failed == nil {
			near.Close()
		}
		if err == nil {
			far.Close()
		}
		return nil, nil, errors.Join(failed, err)
	}
	return near, far, nil
}
