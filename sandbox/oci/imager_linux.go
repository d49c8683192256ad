package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/usage"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Labels of images that are made of sandboxes: the daemon, and how many of their layers are of the
// image below all of them.
const (
	labelMade  = "sandboxd.made"
	labelBelow = "sandboxd.below"
)

// imager is the backend's sandbox.Imager. It also finds the images of sandboxes.
type imager struct {
	*instances

	names machine.Names
	make  func(ctx context.Context, s *store.Store, ref string, progress func(string)) error
	makes func(ref string) bool
	turns machine.Turns
}

// Snapshot saves the files of inst as an image. See sandbox.Imager.
func (im *imager) Snapshot(ctx context.Context, inst sandbox.Instance, owner, name,
	tag string) (string, error) {
	for what, label := range map[string]string{"snapshot": name, "tag": tag} {
		if _, err := wire.ParseLabel(what, label); err != nil {
			return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
		}
	}
	ref := im.names.Snapshots(owner) + name + ":" + tag
	switch _, err := im.images.Image(ref); {
	case err == nil:
		return "", fmt.Errorf("snapshot %s: %s: %w", inst.ID, ref, fs.ErrExist)
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("snapshot %s: %w", inst.ID, err)
	}
	return ref, im.commit(ctx, inst, ref, nil)
}

// Fork saves the files of inst for another instance. See sandbox.Imager.
func (im *imager) Fork(ctx context.Context, inst sandbox.Instance, id string) (string, error) {
	if !guestconfig.ValidID.MatchString(id) {
		return "", fmt.Errorf("fork: id %q is not a DNS label", id)
	}
	ref := machine.ForkImage(id)
	return ref, im.commit(ctx, inst, ref, nil)
}

// commit makes an image of what the container has written, over the layers of its own image. A
// container that runs is paused meanwhile. The image has the configuration with, or that of its own
// image if with is nil. The image does not include mounts: the guest, its sockets, /dev/shm. No
// file contains keys.
func (im *imager) commit(ctx context.Context, inst sandbox.Instance, ref string,
	with *sandbox.ImageConfig) error {
	return im.change(ctx, "save files of", inst, func(p process) error {
		img, err := im.images.Held(im.holder(inst.ID))
		if err != nil {
			return err
		}
		if p.runs() && !usage.Frozen(p.pid, inst.Ref) {
			if err := im.freeze(ctx, inst, p); err != nil {
				return err
			}
			defer func() {
				if err := im.thaw(context.WithoutCancel(ctx), inst); err != nil {
					im.log(inst.ID).Error("a sandbox stays paused after a snapshot", "err", err)
				}
			}()
		}
		config := img.Config
		if with != nil {
			config = *with
		}
		config.Labels = maps.Clone(config.Labels)
		if config.Labels == nil {
			config.Labels = make(map[string]string)
		}
		config.Labels[labelMade] = im.daemon
		below := len(img.Layers)
		if machine.IsSnapshot(img.Ref) {
			below = im.below(img)
		}
		config.Labels[labelBelow] = strconv.Itoa(below)
		_, err = im.images.Add(ctx, ref, img, im.in(inst.ID, upperDir), config)
		return err
	})
}

// Weight returns the size of a snapshot: holes in files are kept. See sandbox.Imager.
func (im *imager) Weight(ctx context.Context, inst sandbox.Instance) (int64, error) {
	if _, err := im.first(inst); err != nil && !errors.Is(err, sandbox.ErrStopped) {
		return 0, fmt.Errorf("image size of %s: %w", inst.ID, err)
	}
	w := &usage.Walk{}
	if err := w.Tree(ctx, im.in(inst.ID, upperDir)); err != nil {
		return 0, fmt.Errorf("image size of %s: %w", inst.ID, err)
	}
	return w.Bytes, nil
}

// Kept adds up the layers that were made with these images. See sandbox.Imager.
func (im *imager) Kept(_ context.Context, owner string, ids []string) (sum int64, err error) {
	snapshots, forks := im.names.Snapshots(owner), make(map[string]bool)
	for _, id := range ids {
		forks[machine.ForkImage(id)] = true
	}
	list, err := im.images.List(func(img store.Image) bool {
		return strings.HasPrefix(img.Ref, snapshots) || forks[img.Ref] ||
			im.names.MadeFor(owner, img.Ref)
	})
	if err != nil {
		return 0, fmt.Errorf("kept images: %w", err)
	}
	seen := make(map[string]bool)
	for _, img := range list {
		for i := im.below(img); i < len(img.Layers); i++ {
			if dir := img.Layers[i]; !seen[dir] {
				seen[dir] = true
				sum += img.Sizes[i]
			}
		}
	}
	return sum, nil
}

// below returns how many layers of an image that was made of a sandbox are of the image below.
func (im *imager) below(img store.Image) int {
	n, err := strconv.Atoi(img.Config.Labels[labelBelow])
	if err != nil || img.Config.Labels[labelMade] != im.daemon {
		return 0
	}
	return min(max(n, 0), len(img.Layers))
}

// Arch returns the architecture of this machine. See sandbox.Imager.
func (*imager) Arch(context.Context) (string, error) { return runtime.GOARCH, nil }

// Image returns the image of a spec. See sandbox.Imager.
func (im *imager) Image(ctx context.Context, spec sandbox.Spec) (sandbox.Image, error) {
	img, err := im.of(ctx, spec)
	if err != nil {
		return sandbox.Image{}, &sandbox.BootError{Stage: stageImage, Hint: sandbox.HintOf(err),
			Err: err}
	}
	return sandbox.Image{ID: img.ID, Config: img.Config}, nil
}

// of returns the image of a spec, which its owner may use. It pulls or builds a missing one.
func (im *imager) of(ctx context.Context, spec sandbox.Spec) (store.Image, error) {
	var err error
	if spec.Image, err = machine.ParseImage(spec.Image); err != nil {
		return store.Image{}, err
	}
	if err := im.names.MayBoot(spec); err != nil {
		return store.Image{}, err
	}
	progress := spec.Progress
	if progress == nil {
		progress = func(string) {}
	}
	return im.image(ctx, spec.Image, progress)
}

// Prepared returns the image that Prepare saved. See sandbox.Imager.
func (im *imager) Prepared(ctx context.Context, spec sandbox.Spec, l sandbox.Layer) (string,
	error) {
	base, err := im.Image(ctx, spec)
	if err != nil {
		return "", err
	}
	ref := im.names.Made(spec.Owner, base.ID, l)
	switch err := im.images.Touch(ref); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", &sandbox.BootError{Stage: stageImage, Err: err}
	}
	return ref, nil
}

// Prepare saves the files of inst for sandboxes of the same owner, image and key. See
// sandbox.Imager.
func (im *imager) Prepare(ctx context.Context, inst sandbox.Instance, owner string,
	l sandbox.Layer) (string, error) {
	ref := im.names.Made(owner, inst.Digest, l)
	repository, _, _ := strings.Cut(ref, ":")
	made, err := im.made(func(ref string) bool { return strings.HasPrefix(ref, repository+":") })
	if err != nil {
		return "", fmt.Errorf("save an image: %w", err)
	}
	used := make(map[string]time.Time)
	for _, img := range made {
		used[img.Ref] = img.Used
	}
	for _, old := range machine.Surplus(used, time.Now()) {
		if err := im.images.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			im.logs.Warn("an image of an earlier setup is left", "image", old, "err", err)
		}
	}
	im.collect(ctx)
	return ref, im.commit(ctx, inst, ref, l.Config)
}

// Forget removes images that can be made again. See sandbox.Imager.
func (im *imager) Forget(ctx context.Context, owner string,
	keep func(image string) bool) (n int, err error) {
	made, err := im.made(func(ref string) bool {
		return im.names.MadeFor(owner, ref) && !keep(ref)
	})
	if err != nil {
		return 0, fmt.Errorf("forget images: %w", err)
	}
	for _, img := range made {
		if err := im.images.Remove(img.Ref); err == nil {
			n++
		}
	}
	return n, im.images.Collect(ctx)
}

// made returns the images of this daemon that can be made again and that no instance uses.
func (im *imager) made(of func(ref string) bool) ([]store.Image, error) {
	dirs, err := im.ids()
	if err != nil {
		return nil, err
	}
	used := make(map[string]bool)
	for _, id := range dirs {
		if n, err := im.state.ReadNote(id); err == nil {
			used[n.Instance.Image] = true
		}
	}
	return im.images.List(func(img store.Image) bool {
		return machine.IsMade(img.Ref) && img.Config.Labels[labelMade] == im.daemon &&
			!used[img.Ref] && of(img.Ref)
	})
}
