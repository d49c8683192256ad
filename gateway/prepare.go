package gateway

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Prepare returns an image that has what spec.Setup makes of the image of spec, by which sandboxes
// of p, and of nobody else, may be made. One that was made before is found again; else a sandbox is
// made for it, with the limits and the network of spec, and removed.
func (h *Hub) Prepare(ctx context.Context, p Principal, spec NewSpec, progress func(line string)) (image string, err error) {
	if err := p.mayMake("creating"); err != nil {
		return "", err
	}
	if len(spec.Setup) == 0 || spec.Build != nil {
		return "", wire.Errorf(wire.CodeUsage, "an image is prepared of an image, by a set-up")
	}
	f, err := h.plan(p, spec)
	if err != nil {
		return "", err
	}
	made, err := h.planMaking(p, spec)
	if err != nil {
		return "", err
	}
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return "", err
	}
	b := newBox(h, f.spec.ID, f) // for what errors say; nobody can find it
	preparer, ok := be.(sandbox.Imager)
	if !ok {
		return "", b.Reach(fmt.Errorf("setup: %w", sandbox.ErrUnsupported))
	}
	key, err := made.setupKey(f.spec)
	if err != nil {
		return "", err
	}
	prepared := func() (string, error) {
		image, err := preparer.Prepared(ctx, f.spec, key)
		if err != nil {
			return "", b.bootError("prepare", err)
		}
		return image, nil
	}
	if image, err = prepared(); image != "" || err != nil {
		return image, err
	}
	spec.Name, spec.Reuse = f.name, false
	if _, err := h.Create(ctx, p, spec, progress); err != nil {
		return "", err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if _, gone := h.Remove(clean, p, f.name); gone != nil && err == nil {
			err = gone
		}
	}()
	if image, err = prepared(); err == nil && image == "" {
		err = wire.Errorf(wire.CodeUnavailable, "what the set-up made could not be kept")
	}
	return image, err
}
