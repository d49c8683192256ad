package docker

import (
	"context"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// images makes, finds and removes images.
type images struct {
	machine.Images

	engineStore *imageStore // Images.Store
}

// imageStore is the engine as a machine.ImageStore.
type imageStore struct {
	*engine

	instances *instances

	committing sync.RWMutex // read-locked while images are made, locked while they are removed
}

func newImages(e *engine, all *instances, o Options) *images {
	s := &imageStore{engine: e, instances: all}
	return &images{engineStore: s, Images: machine.Images{Names: machine.Names{Daemon: o.DaemonID},
		Store: s, Build: o.Build, Builds: o.Builds}}
}

// Find returns an image by its name or its ID. See machine.ImageStore.
func (s *imageStore) Find(ctx context.Context, ref string) (sandbox.Image, error) {
	return s.inspectImage(ctx, ref)
}

// Pull gets an image from its registry. See machine.ImageStore.
func (s *imageStore) Pull(ctx context.Context, ref string, progress func(string)) error {
	return s.pull(ctx, ref, progress)
}

// Touch notes that an image is used now. See machine.ImageStore.
func (s *imageStore) Touch(ctx context.Context, ref string) error {
	if _, err := s.inspectImage(ctx, ref); err != nil {
		return err
	}
	s.used(ctx, ref)
	return nil
}

// Arch returns the architecture of the engine's images. See sandbox.Imager.
func (im *images) Arch(ctx context.Context) (string, error) {
	f, err := im.engineStore.facts(ctx)
	return f.arch, err
}
