package docker

import (
	"context"
	"fmt"
	"strings"
	"time"

	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// labelMade holds the daemon's ID on everything that is made for Dockerfiles and setups: Sweep and
// prune may remove images that have the label and no name.
const labelMade = "sandboxd.made"

// Prepare saves the files of inst for sandboxes of the same owner, image and key. See
// sandbox.Imager.
func (im *images) Prepare(ctx context.Context, inst sandbox.Instance, owner string,
	l sandbox.Layer) (string, error) {
	im.trimMade(ctx)
	ref := im.Names.Made(owner, inst.Digest, l)
	return ref, im.engineStore.Save(ctx, inst, ref, &l)
}

// Sweep removes images without a name that an earlier daemon left. See sandbox.Finder.
func (im *images) Sweep(ctx context.Context) error {
	if !im.engineStore.committing.TryLock() { // an image has no name until its commit ends
		return nil
	}
	defer im.engineStore.committing.Unlock()
	return im.engineStore.prune(ctx)
}

// Forget removes images that can be made again. See sandbox.Imager.
func (im *images) Forget(ctx context.Context, owner string,
	keep func(image string) bool) (n int, err error) {
	list, err := im.madeImages(ctx)
	if err != nil {
		return 0, fmt.Errorf("forget images: %w", err)
	}
	for _, item := range list {
		for _, ref := range item.RepoTags {
			if im.Names.MadeFor(owner, ref) && !keep(ref) && im.engineStore.removeUnused(ctx, ref) {
				n++
			}
		}
	}
	return n, nil
}

// madeImages lists the images that Dockerfiles and setups of this daemon left, including those
// without a name.
func (im *images) madeImages(ctx context.Context) ([]engineimage.Summary, error) {
	return im.engineStore.listImages(ctx, client.ImageListOptions{
		Filters: make(client.Filters).Add("label", im.engineStore.made())})
}

// trimMade makes room for one more image. It also removes leftovers of earlier builds that are no
// base of another image. It does nothing while an image is made, which has no name until its end.
func (im *images) trimMade(ctx context.Context) {
	if !im.engineStore.committing.TryLock() {
		return
	}
	defer im.engineStore.committing.Unlock()
	if err := im.trim(ctx); err != nil && ctx.Err() == nil {
		im.engineStore.log.Warn("images of earlier builds are left", "err", err)
	}
}

func (im *images) trim(ctx context.Context) error {
	if err := im.engineStore.prune(ctx); err != nil {
		return err
	}
	list, err := im.madeImages(ctx)
	if err != nil {
		return err
	}
	used := make(map[string]map[string]time.Time) // by repository and name
	for _, item := range list {
		for _, ref := range item.RepoTags {
			if !machine.IsMade(ref) {
				continue
			}
			got, err := im.engineStore.rawImage(ctx, ref)
			if err != nil {
				continue
			}
			repository, _, _ := strings.Cut(ref, ":")
			if used[repository] == nil {
				used[repository] = make(map[string]time.Time)
			}
			used[repository][ref] = got.Metadata.LastTagTime
		}
	}
	for _, of := range used {
		for _, ref := range machine.Surplus(of, time.Now()) {
			im.engineStore.removeUnused(ctx, ref)
		}
	}
	return nil
}
