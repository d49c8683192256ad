package docker

import (
	"context"
	"errors"
	"fmt"
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
	turns     machine.Turns

	make  func(ctx context.Context, ref string, progress func(string)) error // Options.Build
	makes func(ref string) bool                                              // Options.Builds

	committing sync.RWMutex // read-locked while images are made, locked while they are removed
}

// image is the part of an image that sandboxes use.
type image struct {
	id     string
	arch   string
	config dockerspec.DockerOCIImageConfig
}

// image finds ref on the engine. It builds a missing image that Options.Builds accepts, and pulls
// any other.
func (im *images) image(ctx context.Context, ref string, progress func(string)) (image, error) {
	got, err := im.engine.inspectImage(ctx, ref)
	if !errors.Is(err, sandbox.ErrNoImage) {
		return got, err
	}
	if machine.IsSnapshot(ref) {
		return image{}, err
	}
	done, err := im.turns.Take(ctx, progress)
	if err != nil {
		return image{}, err
	}
	defer done()
	if got, err = im.engine.inspectImage(ctx, ref); !errors.Is(err, sandbox.ErrNoImage) {
		return got, err
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

// Arch returns the architecture of the engine's images. See sandbox.Imager.
func (im *images) Arch(ctx context.Context) (string, error) {
	f, err := im.engine.facts(ctx)
	return f.arch, err
}

// Image returns the image of a spec. See sandbox.Imager.
func (im *images) Image(ctx context.Context, spec sandbox.Spec) (sandbox.Image, error) {
	img, err := im.of(ctx, spec)
	if err != nil {
		return sandbox.Image{}, &sandbox.BootError{Stage: stageImage, Hint: sandbox.HintOf(err),
			Err: err}
	}
	return sandbox.Image{ID: img.id, Config: img.config}, nil
}

// of returns the image of a spec, which its owner may use. It pulls or builds a missing one.
func (im *images) of(ctx context.Context, spec sandbox.Spec) (image, error) {
	var err error
	if spec.Image, err = machine.ParseImage(spec.Image); err != nil {
		return image{}, err
	}
	if err := im.names.MayBoot(spec); err != nil {
		return image{}, err
	}
	progress := spec.Progress
	if progress == nil {
		progress = func(string) {}
	}
	return im.image(ctx, spec.Image, progress)
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
