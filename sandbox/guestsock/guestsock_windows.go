package guestsock

import (
	"context"
	"errors"
	"net"
	"os"
)

// No guest calls a daemon here: it does not run on Windows.

func listenIn(string, string) (*net.UnixListener, error) { return nil, errors.ErrUnsupported }

func alive(*net.UnixConn) bool { return false }

// ReceiveFile returns ErrUnsupported.
func ReceiveFile(context.Context, *net.UnixConn, string) (*os.File, error) {
	return nil, errors.ErrUnsupported
}
