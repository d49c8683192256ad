package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ErrNoImages is the error of Prepare, and of a setup, with a backend that saves no images.
var ErrNoImages = fmt.Errorf("setup: %w: sandboxes of this kind are not saved as images",
	sandbox.ErrUnsupported)

// Prepare returns the image of spec after the commands of spec.Setup. Only owner's sandboxes may
// use it. It returns an existing one, or creates a sandbox with the limits and the network of spec
// to make it, and removes that sandbox. The commands can use no secrets. Of
// concurrent equal calls, the first makes the image.
func (reg *Registry) Prepare(ctx context.Context, owner string, spec NewSpec,
	progress func(line string)) (image string, err error) {
	if len(spec.Setup) == 0 || spec.Build != nil {
		return "", wire.Errorf(wire.CodeUsage,
			"prepare: setup is required, and build is not supported")
	}
	spec.NoSecrets = true // the image outlasts the secrets
	// Those of the sandbox in which it is made: a backend without images may not have them.
	ttl, deleteAfter := spec.TTL, spec.DeleteAfter
	spec.TTL, spec.DeleteAfter = 0, 0
	f, err := reg.options.plan(owner, spec)
	if err != nil {
		return "", err
	}
	images, err := reg.options.planImageSource(owner, spec)
	if err != nil {
		return "", err
	}
	be, err := reg.options.backend(f.Instance.Backend)
	if err != nil {
		return "", err
	}
	sb := newSandbox(reg, f.Spec.ID, f) // only for errors: it is not registered
	preparer, ok := be.(sandbox.Imager)
	if !ok {
		return "", sb.Reach(ErrNoImages)
	}
	key, err := images.setupKey(f.Asked)
	if err != nil {
		return "", err
	}
	done, err := reg.preparing.take(ctx, owner+"\x00"+f.Spec.Image+"\x00"+key)
	if err != nil {
		return "", err
	}
	defer done()
	prepared := func() (string, error) {
		image, err := preparer.Prepared(ctx, f.Spec, sandbox.Layer{Key: key})
		if err != nil {
			return "", sb.bootError("prepare", err)
		}
		return image, nil
	}
	if image, err = prepared(); image != "" || err != nil {
		return image, err
	}
	spec.Name, spec.Reuse = f.Name, false
	spec.TTL, spec.DeleteAfter = ttl, deleteAfter
	info, err := reg.Create(ctx, owner, spec, progress)
	if err != nil {
		return "", err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if made := reg.Find(f.Name); made != nil && made.get().Spec.ID == info.ID {
			if _, gone := made.Remove(clean); gone != nil && err == nil {
				err = gone
			}
		}
	}()
	if image, err = prepared(); err == nil && image == "" {
		err = wire.Errorf(wire.CodeUnavailable, "setup: its result could not be saved")
	}
	return image, err
}
