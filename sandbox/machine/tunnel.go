package machine

import (
	"context"
	"fmt"
	"net"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
)

// Caller returns the connection that the guest of an instance keeps waiting on a socket. The caller
// closes it.
type Caller func(ctx context.Context, inst sandbox.Instance, socket string) (*net.UnixConn, error)

// Tunnel receives the network device of inst from its guest. See sandbox.Networker.
func Tunnel(ctx context.Context, inst sandbox.Instance, caller Caller) (sandbox.Tunnel, error) {
	t, err := tunnel(ctx, inst, caller)
	if err != nil {
		return t, fmt.Errorf("network device of %s: %w", inst.ID, err)
	}
	return t, nil
}

func tunnel(ctx context.Context, inst sandbox.Instance, caller Caller) (t sandbox.Tunnel,
	err error) {
	switch {
	case !guestconfig.ValidID.MatchString(inst.ID):
		return t, fmt.Errorf("id %q is not a DNS label", inst.ID)
	case !inst.Network.Carried() || inst.Via == sandbox.ViaProxy:
		return t, fmt.Errorf("network %s %s: %w", inst.Network, inst.Via, sandbox.ErrUnsupported)
	}
	conn, err := caller(ctx, inst, guestsock.Tun)
	if err != nil {
		return t, err
	}
	device, err := guestsock.ReceiveFile(ctx, conn, TunDevice)
	if err != nil {
		conn.Close()
		return t, err
	}
	return sandbox.Tunnel{Device: device, Hold: conn}, nil
}
