//go:build unix

package guestsock

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// receiveWithin bounds the time in which a guest that has called must pass a file.
const receiveWithin = 5 * time.Second

// ReceiveFile reads one byte and the descriptor that comes with it, and names the file name. No
// descriptor, or more than one, is an error; it leaves none open. It waits for at most five
// seconds.
func ReceiveFile(ctx context.Context, conn *net.UnixConn, name string) (*os.File, error) {
	if err := conn.SetReadDeadline(time.Now().Add(receiveWithin)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	var b [1]byte
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(b[:], control)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return nil, err
	}
	var files []int
	for _, m := range messages {
		got, err := unix.ParseUnixRights(&m)
		if err == nil {
			files = append(files, got...)
		}
	}
	if len(files) != 1 {
		for _, fd := range files {
			unix.Close(fd)
		}
		return nil, errors.New("the guest passed no file")
	}
	unix.CloseOnExec(files[0])
	if err := unix.SetNonblock(files[0], true); err != nil {
		unix.Close(files[0])
		return nil, err
	}
	if ctx.Err() != nil {
		unix.Close(files[0])
		return nil, context.Cause(ctx)
	}
	return os.NewFile(uintptr(files[0]), name), conn.SetReadDeadline(time.Time{})
}
