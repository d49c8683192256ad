package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// images makes, finds and removes images, and decides who may boot them.
type images struct {
	engine    *engine
	instances *instances
	names     machine.Names

	make  func(ctx context.Context, ref string, progress func(string)) error // Options.Build
	makes func(ref string) bool                                              // Options.Builds

	building sync.RWMutex // read-locked while the engine builds, locked while images are removed
}

// image is the part of an image that sandboxes use.
type image struct {
	id       string
	size     int64 // bytes
	arch     string
	restored bool // config is of the image below: this one was made from a sandbox
	config   dockerspec.DockerOCIImageConfig
}

// image finds ref on the engine. It builds a missing image that Options.Builds accepts, and pulls
// any other.
func (im *images) image(ctx context.Context, ref string, progress func(string)) (image, error) {
	got, err := im.engine.inspectImage(ctx, ref)
	if !errors.Is(err, sandbox.ErrNoImage) {
		return got, err
	}
	if machine.IsSnapshot(ref) || strings.HasPrefix(ref, machine.BuildPrefix) {
		return image{}, err
	}
	if ref == sandbox.DefaultImage || im.makes != nil && im.makes(ref) {
		// Never pulled: the owner of that name in a public registry could run code in every
		// sandbox.
		if im.make == nil {
			return image{}, sandbox.Hint(err, "build it: images/base/build")
		}
		progress("building " + ref)
		if err := im.make(ctx, ref, progress); err != nil {
			return image{}, fmt.Errorf("build %s: %w", ref, err)
		}
		return im.engine.inspectImage(ctx, ref)
	}
	if err := im.engine.pull(ctx, ref, progress); err != nil {
		return image{}, err
	}
	return im.engine.inspectImage(ctx, ref)
}

// Resolve returns the ID of an image that is present. See sandbox.Reviser.
func (im *images) Resolve(ctx context.Context, ref string) (string, error) {
	ref, err := machine.ParseImage(ref)
	if err != nil {
		return "", err
	}
	i, err := im.engine.inspectImage(ctx, ref)
	return i.id, err
}
