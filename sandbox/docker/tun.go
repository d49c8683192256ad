package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// tunWithin bounds the passing of a network device by a guest that has called.
const tunWithin = 5 * time.Second

// Tunnel takes the network device from the guest. See sandbox.Networker. A guest that is asked twice passes it twice.
func (b *Backend) Tunnel(ctx context.Context, inst sandbox.Instance) (sandbox.Tunnel, error) {
	t, err := b.tunnel(ctx, inst)
	if err != nil {
		return t, fmt.Errorf("network device of %s: %w", inst.ID, err)
	}
	return t, nil
}

func (b *Backend) tunnel(ctx context.Context, inst sandbox.Instance) (sandbox.Tunnel, error) {
	var none sandbox.Tunnel
	switch {
	case !validID.MatchString(inst.ID):
		return none, fmt.Errorf("id %q is not a DNS label", inst.ID)
	case !inst.Network.Carried() || inst.Via == sandbox.ViaProxy:
		return none, fmt.Errorf("network %s %s: %w", inst.Network, inst.Via, sandbox.ErrUnsupported)
	}
	conn, err := b.caller(ctx, inst, tunSocketName)
	if err != nil {
		return none, err
	}
	device, err := receiveFile(ctx, conn)
	if err != nil {
		conn.Close()
		return none, err
	}
	return sandbox.Tunnel{Device: device, Hold: conn}, nil
}

// receiveFile reads one byte and the descriptor that comes with it. More than one are closed: what is sent is not asked for.
func receiveFile(ctx context.Context, conn *net.UnixConn) (*os.File, error) {
	if err := conn.SetReadDeadline(time.Now().Add(tunWithin)); err != nil {
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
		return nil, errors.New("the guest passed none")
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
	return os.NewFile(uintptr(files[0]), tunDevice), conn.SetReadDeadline(time.Time{})
}
