package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox/oci"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

type ociImages struct{ *store.Store }

func openImages(c *config.Loaded) (imageStore, error) {
	s, err := store.Open(string(c.OCI.Images))
	return ociImages{s}, err
}

func kept(img store.Image) keptImage {
	return keptImage{Name: img.Ref, ID: img.ID, Size: img.Size, Created: img.Created}
}

func keptAll(list []store.Image) []keptImage {
	all := make([]keptImage, 0, len(list))
	for _, img := range list {
		all = append(all, kept(img))
	}
	return all
}

func (s ociImages) list() ([]keptImage, error) {
	list, err := s.List(nil)
	return keptAll(list), err
}

func (s ociImages) pull(ctx context.Context, name string, progress func(string)) (keptImage,
	error) {
	if !oci.MayPull(name, images.Has) {
		return keptImage{}, &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf(
			"%q is a name of sandboxd's own images, which are never pulled", name),
			Hint: "create a sandbox of it, which builds it"}
	}
	img, err := s.Pull(ctx, name, runtime.GOARCH, store.DockerLogin, progress)
	return kept(img), err
}

func (s ociImages) load(ctx context.Context, file string) ([]keptImage, error) {
	list, err := s.Load(ctx, file)
	return keptAll(list), err
}

func (s ociImages) remove(ctx context.Context, names []string) error {
	for _, name := range names { // all or none
		if _, err := s.Image(name); errors.Is(err, fs.ErrNotExist) {
			return &wire.Error{Code: wire.CodeUsage,
				Message: fmt.Sprintf("no such image: %q; nothing was removed", name),
				Hint:    "see: sandboxd images ls"}
		}
	}
	for _, name := range names {
		if err := s.Remove(name); err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "%s removed\n", name)
	}
	return s.Collect(ctx)
}
