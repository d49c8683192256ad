package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
)

// MayPull reports whether a registry may decide what the image ref is: not for the default one, for
// those that builds accepts, and for those that are made of sandboxes. The owner of such a name in
// a public registry could run code in sandboxes.
func MayPull(ref string, builds func(ref string) bool) bool {
	ref, err := machine.ParseImage(ref)
	return err != nil || ref != sandbox.DefaultImage && !machine.IsSnapshot(ref) &&
		(builds == nil || !builds(ref))
}

// image finds ref in the store. It builds a missing image that Options.Builds accepts, and pulls
// any other.
func (im *imager) image(ctx context.Context, ref string, progress func(string)) (store.Image,
	error) {
	img, err := im.images.Image(ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return img, err
	}
	if machine.IsSnapshot(ref) {
		return img, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	}
	done, err := im.turns.Take(ctx, progress)
	if err != nil {
		return img, err
	}
	defer done()
	if img, err := im.images.Image(ref); !errors.Is(err, fs.ErrNotExist) {
		return img, err
	}
	if !MayPull(ref, im.makes) {
		if im.make == nil {
			return img, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
		}
		progress("building " + ref)
		if err := im.make(ctx, im.images, ref, progress); err != nil {
			return img, fmt.Errorf("build %s: %w", ref, err)
		}
		return im.images.Image(ref)
	}
	img, err = im.images.Pull(ctx, ref, runtime.GOARCH, store.Anonymous, progress)
	if err != nil && ctx.Err() == nil {
		return img, sandbox.Hint(fmt.Errorf("%w here, and it was not pulled: %w",
			sandbox.ErrNoImage, err), "check the name, the network and the proxy; or load a file: "+
			"sandboxd images load FILE")
	}
	return img, err
}

// Resolve returns the ID of an image that is present. See sandbox.Reviser.
func (im *imager) Resolve(_ context.Context, ref string) (string, error) {
	ref, err := machine.ParseImage(ref)
	if err != nil {
		return "", err
	}
	img, err := im.images.Image(ref)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	}
	return img.ID, err
}

// Revision returns the revision of an instance made now. See sandbox.Reviser.
func (b *Backend) Revision(_ context.Context, spec sandbox.Spec) (string, error) {
	name, err := b.runtime.find(spec.Isolation)
	if err != nil {
		return "", err
	}
	guest, _, err := b.files.Place(runtime.GOARCH, sandbox.TrustImage)
	if err != nil {
		return "", err
	}
	return machine.Revision(guest, name), nil
}
