package store

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/distribution/reference"
)

// Add makes an image of the layers of base and a copy of upper, the upper directory of an overlay
// file system on them. The copy keeps owners, modes, times, extended attributes, hard links, holes,
// device nodes and FIFOs; it has no sockets. Nothing may write to upper meanwhile, or the image has
// files of different times; it never has files from outside of upper. The file system must have
// been mounted with metacopy=off. Unless it succeeds, it leaves nothing. If a layer of base was
// removed the error is fs.ErrNotExist.
func (s *Store) Add(ctx context.Context, ref string, base Image, upper string,
	config Config) (Image, error) {
	named, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	fail := func(err error) (Image, error) {
		return Image{}, fmt.Errorf("make %s: %w", reference.FamiliarString(named), err)
	}
	layers, err := s.layerNames(base)
	if err != nil {
		return fail(err)
	}
	call, err := s.begin()
	if err != nil {
		return fail(err)
	}
	defer call.end()
	missing, err := call.need(layers)
	if err != nil {
		return fail(call.explain(ctx, err))
	}
	if len(missing) > 0 {
		return fail(fmt.Errorf("%d layers of %s are gone: %w", len(missing), base.Ref,
			fs.ErrNotExist))
	}
	l, files, err := call.newLayer()
	if err != nil {
		return fail(err)
	}
	if err := copyTree(ctx, upper, files); err != nil {
		return fail(call.explain(ctx, err))
	}
	if err := finish(ctx, l, refuseMetacopy); err != nil {
		return fail(call.explain(ctx, err))
	}
	// There is no tar to take a digest of.
	id := make([]byte, 32)
	rand.Read(id)
	l.name = base64.RawURLEncoding.EncodeToString(id)
	r, err := newRecord(named, base.Arch, append(layers, l.name), config)
	if err != nil {
		return fail(err)
	}
	img, err := call.commit(r, []layer{l})
	if err != nil {
		return fail(call.explain(ctx, err))
	}
	return img, nil
}

// refuseMetacopy is the check of a copy of an upper directory: a file with this attribute has its
// data in a layer below.
func refuseMetacopy(path, attribute string) error {
	if attribute != overlayPrefix+"metacopy" {
		return nil
	}
	return fmt.Errorf("%q has no data: mount the overlay file system with metacopy=off",
		filepath.Base(path))
}
