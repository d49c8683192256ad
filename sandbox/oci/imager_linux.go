package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/usage"
)

// Labels of images that are made of sandboxes: the daemon, and how many of their layers are of the
// image below all of them.
const (
	labelMade  = "sandboxd.made"
	labelBelow = "sandboxd.below"
)

// imager is the backend's sandbox.Imager.
type imager struct {
	*instances
	machine.Images
}

func newImager(l *instances, o Options) *imager {
	im := &imager{instances: l, Images: machine.Images{Names: machine.Names{Daemon: o.DaemonID},
		Store: imageStore{l}, Builds: o.Builds}}
	if o.Build != nil {
		im.Build = func(ctx context.Context, ref string, progress func(string)) error {
			return o.Build(ctx, l.images, ref, progress)
		}
	}
	return im
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
	keeps := im.Names.Keeps(owner, ids)
	list, err := im.images.List(func(img store.Image) bool { return keeps(img.Ref) })
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
func (l *instances) below(img store.Image) int {
	n, err := strconv.Atoi(img.Config.Labels[labelBelow])
	if err != nil || img.Config.Labels[labelMade] != l.daemon {
		return 0
	}
	return min(max(n, 0), len(img.Layers))
}

// Arch returns the architecture of this machine. See sandbox.Imager.
func (*imager) Arch(context.Context) (string, error) { return runtime.GOARCH, nil }

// Prepare saves the files of inst for sandboxes of the same owner, image and key. See
// sandbox.Imager.
func (im *imager) Prepare(ctx context.Context, inst sandbox.Instance, owner string,
	l sandbox.Layer) (string, error) {
	ref := im.Names.Made(owner, inst.Digest, l)
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
	return ref, im.Store.Save(ctx, inst, ref, &l)
}

// Forget removes images that can be made again. See sandbox.Imager.
func (im *imager) Forget(ctx context.Context, owner string,
	keep func(image string) bool) (n int, err error) {
	made, err := im.made(func(ref string) bool {
		return im.Names.MadeFor(owner, ref) && !keep(ref)
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
