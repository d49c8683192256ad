package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Images is the part of a sandbox.Imager that is the same wherever images are kept: it names
// images, decides who may boot one, and gets a missing one. A backend embeds it.
type Images struct {
	Names Names
	Store ImageStore

	getting guestconfig.Locks // by owner: a registry may send an image as slowly as it likes

	// Build makes a missing image that Builds accepts, or the default image; nil makes none.
	Build func(ctx context.Context, ref string, progress func(line string)) error
	// Builds reports whether Build makes an image besides the default one; nil means none.
	Builds func(ref string) bool
}

// ImageStore is where a backend keeps images. References have the form of ParseImage.
type ImageStore interface {
	// Find returns an image by its name or its ID. A missing one is ErrNoImage.
	Find(ctx context.Context, ref string) (sandbox.Image, error)
	// Pull gets an image from its registry.
	Pull(ctx context.Context, ref string, progress func(line string)) error
	// Save makes an image of the files of inst. l is nil unless it can be made again.
	Save(ctx context.Context, inst sandbox.Instance, ref string, l *sandbox.Layer) error
	// Touch notes that an image is used now. A missing one is ErrNoImage.
	Touch(ctx context.Context, ref string) error
}

// MayPull reports whether a registry may decide what the image ref is: not for the default one, for
// those that builds accepts, and for those that are made of sandboxes. The owner of such a name in
// a public registry could run code in sandboxes. builds may be nil.
func MayPull(ref string, builds func(ref string) bool) bool {
	ref, err := ParseImage(ref)
	return err != nil || ref != sandbox.DefaultImage && !IsSnapshot(ref) &&
		(builds == nil || !builds(ref))
}

// Ensure returns the image of a spec, and builds or pulls a missing one: one at a time for each
// owner. spec.Image is normalized, and its owner may use it.
func (im *Images) Ensure(ctx context.Context, spec sandbox.Spec) (sandbox.Image, error) {
	ref, progress := spec.Image, spec.Progress
	img, err := im.Store.Find(ctx, ref)
	if !errors.Is(err, sandbox.ErrNoImage) || IsSnapshot(ref) {
		return img, err
	}
	if progress == nil {
		progress = func(string) {}
	}
	if im.getting.Changing(spec.Owner) {
		progress("waiting for your other image")
	}
	done, err := im.getting.Lock(ctx, spec.Owner)
	if err != nil {
		return img, err
	}
	defer done()
	if img, err = im.Store.Find(ctx, ref); !errors.Is(err, sandbox.ErrNoImage) {
		return img, err
	}
	switch {
	case MayPull(ref, im.Builds):
		err = im.Store.Pull(ctx, ref, progress)
	case im.Build == nil:
		return img, sandbox.Hint(err, "build it: images/base/build")
	default:
		progress("building " + ref)
		if err = im.Build(ctx, ref, progress); err != nil {
			err = fmt.Errorf("build %s: %w", ref, err)
		}
	}
	if err != nil {
		return img, err
	}
	return im.Store.Find(ctx, ref)
}

// Image returns the image of a spec, which its owner may use. See sandbox.Imager.
func (im *Images) Image(ctx context.Context, spec sandbox.Spec) (sandbox.Image, error) {
	img, err := im.of(ctx, spec)
	if err != nil {
		return sandbox.Image{}, sandbox.AtStage(sandbox.StageImage, err)
	}
	return img, nil
}

func (im *Images) of(ctx context.Context, spec sandbox.Spec) (img sandbox.Image, err error) {
	if spec.Image, err = ParseImage(spec.Image); err != nil {
		return img, err
	}
	if err := im.Names.MayBoot(spec); err != nil {
		return img, err
	}
	return im.Ensure(ctx, spec)
}

// Resolve returns the ID of an image that is present. See sandbox.Reviser.
func (im *Images) Resolve(ctx context.Context, ref string) (string, error) {
	ref, err := ParseImage(ref)
	if err != nil {
		return "", err
	}
	img, err := im.Store.Find(ctx, ref)
	return img.ID, err
}

// Snapshot saves the files of inst as an image. See sandbox.Imager.
func (im *Images) Snapshot(ctx context.Context, inst sandbox.Instance, owner, name,
	tag string) (string, error) {
	for what, label := range map[string]string{"snapshot": name, "tag": tag} {
		if _, err := wire.ParseLabel(what, label); err != nil {
			return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
		}
	}
	ref := im.Names.Snapshots(owner) + name + ":" + tag
	switch _, err := im.Store.Find(ctx, ref); {
	case err == nil:
		return "", fmt.Errorf("snapshot %s: %s: %w", inst.ID, ref, fs.ErrExist)
	case !errors.Is(err, sandbox.ErrNoImage):
		return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
	}
	return ref, im.Store.Save(ctx, inst, ref, nil)
}

// Fork saves the files of inst for another instance. See sandbox.Imager.
func (im *Images) Fork(ctx context.Context, inst sandbox.Instance, id string) (string, error) {
	if !guestconfig.ValidID.MatchString(id) {
		return "", fmt.Errorf("fork: id %q is not a DNS label", id)
	}
	ref := ForkImage(id)
	return ref, im.Store.Save(ctx, inst, ref, nil)
}

// Prepared returns the image that Prepare saved. See sandbox.Imager.
func (im *Images) Prepared(ctx context.Context, spec sandbox.Spec, l sandbox.Layer) (string,
	error) {
	base, err := im.Image(ctx, spec)
	if err != nil {
		return "", err
	}
	ref := im.Names.Made(spec.Owner, base.ID, l)
	switch err := im.Store.Touch(ctx, ref); {
	case errors.Is(err, sandbox.ErrNoImage):
		return "", nil
	case err != nil:
		return "", sandbox.AtStage(sandbox.StageImage, err)
	}
	return ref, nil
}

// Keeps returns whether an image counts as kept for an owner: it is a snapshot, it can be made
// again, or it is that of a fork, one of ids.
func (n Names) Keeps(owner string, ids []string) func(ref string) bool {
	snapshots, forks := n.Snapshots(owner), make(map[string]bool)
	for _, id := range ids {
		forks[ForkImage(id)] = true
	}
	return func(ref string) bool {
		return strings.HasPrefix(ref, snapshots) || forks[ref] || n.MadeFor(owner, ref)
	}
}
