package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
)

// checkImage refuses names of images that no registry may decide on.
func checkImage(spec sandbox.Spec) error {
	if strings.HasPrefix(spec.Image, "sha256:") { // an ID would match images of any owner
		return fmt.Errorf("image %s: use a name, not an ID", spec.Image)
	}
	return nil
}

// image finds ref in the store. It builds a missing image that Options.Builds accepts, and pulls
// any other.
func (b *Backend) image(ctx context.Context, ref string, progress func(string)) (store.Image,
	error) {
	if ref == "" {
		ref = sandbox.DefaultImage
	}
	img, err := b.images.Image(ref)
	if !errors.Is(err, fs.ErrNotExist) {
		return img, err
	}
	if ref == sandbox.DefaultImage || b.opts.Builds != nil && b.opts.Builds(ref) {
		// Never pulled: the owner of that name in a public registry could run code in every
		// sandbox.
		if b.opts.Build == nil {
			return img, fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
		}
		progress("building " + ref)
		if err := b.opts.Build(ctx, b.images, ref, progress); err != nil {
			return img, fmt.Errorf("build %s: %w", ref, err)
		}
		return b.images.Image(ref)
	}
	img, err = b.images.Pull(ctx, ref, runtime.GOARCH, progress)
	if err != nil && ctx.Err() == nil {
		return img, fmt.Errorf("%w: %w", sandbox.ErrNoImage, err)
	}
	return img, err
}

// Resolve returns the ID of an image that is present. See sandbox.Reviser.
func (b *Backend) Resolve(_ context.Context, ref string) (string, error) {
	if ref == "" {
		ref = sandbox.DefaultImage
	}
	img, err := b.images.Image(ref)
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
	return revision(guest, name), nil
}
