package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Prepare returns an image that has what spec.Setup makes of the image of spec, by which sandboxes
// of p, and of nobody else, may be made. One that was made before is found again; else a sandbox is
// made for it, with the limits and the network of spec, and removed.
func (reg *Registry) Prepare(ctx context.Context, owner string, spec NewSpec, progress func(line string)) (image string, err error) {
	if len(spec.Setup) == 0 || spec.Build != nil {
		return "", wire.Errorf(wire.CodeUsage, "an image is prepared of an image, by a set-up")
	}
	f, err := reg.options.plan(owner, spec)
	if err != nil {
		return "", err
	}
	made, err := reg.options.planMaking(owner, spec)
	if err != nil {
		return "", err
	}
	be, err := reg.options.backend(f.Instance.Backend)
	if err != nil {
		return "", err
	}
	sb := newSandbox(reg, f.Spec.ID, f) // for what errors say; nobody can find it
	preparer, ok := be.(sandbox.Imager)
	if !ok {
		return "", sb.Reach(fmt.Errorf("setup: %w", sandbox.ErrUnsupported))
	}
	key, err := made.setupKey(f.Asked)
	if err != nil {
		return "", err
	}
	prepared := func() (string, error) {
		image, err := preparer.Prepared(ctx, f.Spec, key)
		if err != nil {
			return "", sb.bootError("prepare", err)
		}
		return image, nil
	}
	if image, err = prepared(); image != "" || err != nil {
		return image, err
	}
	spec.Name, spec.Reuse = f.Name, false
	if _, err := reg.Create(ctx, owner, spec, progress); err != nil {
		return "", err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if made := reg.Find(f.Name); made != nil {
			if _, gone := made.Remove(clean); gone != nil && err == nil {
				err = gone
			}
		}
	}()
	if image, err = prepared(); err == nil && image == "" {
		err = wire.Errorf(wire.CodeUnavailable, "what the set-up made could not be kept")
	}
	return image, err
}
