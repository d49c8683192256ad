package docker

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// Tunnel receives the network device from the guest; it may be called repeatedly. See
// sandbox.Networker.
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
	case !guestconfig.ValidID.MatchString(inst.ID):
		return none, fmt.Errorf("id %q is not a DNS label", inst.ID)
	case !inst.Network.Carried() || inst.Via == sandbox.ViaProxy:
		return none, fmt.Errorf("network %s %s: %w", inst.Network, inst.Via, sandbox.ErrUnsupported)
	}
	conn, err := b.caller(ctx, inst, guestsock.Tun)
	if err != nil {
		return none, err
	}
	device, err := guestsock.ReceiveFile(ctx, conn, machine.TunDevice)
	if err != nil {
		conn.Close()
		return none, err
	}
	return sandbox.Tunnel{Device: device, Hold: conn}, nil
}
