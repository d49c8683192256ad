package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/usage"
)

// imageStore is the image store as a machine.ImageStore.
type imageStore struct{ *instances }

// Find returns an image by its name or its ID. See machine.ImageStore.
func (s imageStore) Find(_ context.Context, ref string) (sandbox.Image, error) {
	img, err := s.images.Image(ref)
	if err != nil {
		return sandbox.Image{}, missing(ref, err)
	}
	return sandbox.Image{ID: img.ID, Arch: img.Arch, Config: img.Config}, nil
}

// MayPull reports whether a registry may decide what the image ref is, given the images that are
// built here. See machine.MayPull.
func MayPull(ref string, builds func(ref string) bool) bool { return machine.MayPull(ref, builds) }

// missing is ErrNoImage for the store's error for a missing image.
func missing(ref string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s", sandbox.ErrNoImage, ref)
	}
	return err
}

// Pull gets an image from its registry. See machine.ImageStore.
func (s imageStore) Pull(ctx context.Context, ref string, progress func(string)) error {
	_, err := s.images.Pull(ctx, ref, runtime.GOARCH, store.Anonymous, progress)
	if err != nil && ctx.Err() == nil {
		return sandbox.Hint(fmt.Errorf("%w here, and it was not pulled: %w",
			sandbox.ErrNoImage, err), "check the name, the network and the proxy; or load a file: "+
			"sandboxd images load FILE")
	}
	return err
}

// Touch notes that an image is used now. See machine.ImageStore.
func (s imageStore) Touch(_ context.Context, ref string) error {
	return missing(ref, s.images.Touch(ref))
}

// Save makes an image of what the container has written, over the layers of its own image. A
// container that runs is paused meanwhile. The image does not include mounts: the guest, its
// sockets, /dev/shm. No file contains keys. See machine.ImageStore.
func (s imageStore) Save(ctx context.Context, inst sandbox.Instance, ref string,
	l *sandbox.Layer) error {
	return s.change(ctx, "save files of", inst, func(p process) error {
		img, err := s.images.Held(s.holder(inst.ID))
		if err != nil {
			return err
		}
		if p.runs() && !usage.Frozen(p.pid, inst.Ref) {
			if err := s.freeze(ctx, inst, p); err != nil {
				return err
			}
			defer func() {
				if err := s.thaw(context.WithoutCancel(ctx), inst); err != nil {
					s.log(inst.ID).Error("a sandbox stays paused after a snapshot", "err", err)
				}
			}()
		}
		config := img.Config
		if l != nil && l.Config != nil {
			config = *l.Config
		}
		config.Labels = maps.Clone(config.Labels)
		if config.Labels == nil {
			config.Labels = make(map[string]string)
		}
		config.Labels[labelMade] = s.daemon
		below := len(img.Layers)
		if machine.IsSnapshot(img.Ref) {
			below = s.below(img)
		}
		config.Labels[labelBelow] = strconv.Itoa(below)
		_, err = s.images.Add(ctx, ref, img, s.in(inst.ID, upperDir), config)
		return err
	})
}
