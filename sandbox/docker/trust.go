package docker

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
)

// Trust replaces the authorities besides those of this machine. See sandbox.Truster.
func (b *Backend) Trust(ctx context.Context, inst sandbox.Instance, authorities []byte) error {
	err := b.trust(ctx, inst, authorities)
	if err != nil {
		return fmt.Errorf("certificate authorities of %s: %w", inst.ID, err)
	}
	return nil
}

func (b *Backend) trust(ctx context.Context, inst sandbox.Instance, authorities []byte) error {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	if k, err := b.state.ReadKeys(inst.ID); err == nil && k.Listens() {
		return b.trustRemote(ctx, inst, k, authorities)
	}
	return b.files.Trust(b.state.TrustDir(inst.ID), authorities)
}
