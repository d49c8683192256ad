package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	registry "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	"github.com/opencontainers/go-digest"
)

// Import makes an image of one layer of a tar with a root file system, which gzip or zstd may have
// compressed. It is for this machine's architecture. Unless it succeeds, it leaves nothing. A Read
// of root that waits is not interrupted when ctx ends.
func (s *Store) Import(ctx context.Context, ref string, root io.Reader,
	config Config) (Image, error) {
	named, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	fail := func(err error) (Image, error) {
		return Image{}, fmt.Errorf("import %s: %w", reference.FamiliarString(named), err)
	}
	call, err := s.begin()
	if err != nil {
		return fail(err)
	}
	defer call.end()
	l, err := call.unpack(ctx, root, "")
	if err != nil {
		return fail(err)
	}
	switch files, err := os.ReadDir(filepath.Join(l.dir, filesDir)); {
	case err != nil:
		return fail(err)
	case len(files) == 0:
		return fail(errors.New("the tar has no files"))
	}
	r, err := newRecord(named, runtime.GOARCH, []string{l.name}, config)
	if err != nil {
		return fail(err)
	}
	img, err := call.commit(r, []layer{l})
	if err != nil {
		return fail(call.explain(ctx, err))
	}
	return img, nil
}

// newRecord describes an image that is made now.
func newRecord(named reference.Named, arch string, layers []string, config Config) (record,
	error) {
	now := time.Now().UTC()
	whole := dockerspec.DockerOCIImage{Config: config}
	whole.Created, whole.OS, whole.Architecture = &now, "linux", arch
	whole.RootFS.Type = "layers"
	for _, name := range layers {
		d, err := digestOf(name)
		if err != nil {
			return record{}, err
		}
		whole.RootFS.DiffIDs = append(whole.RootFS.DiffIDs, digest.Digest(d))
	}
	raw, err := json.Marshal(whole)
	if err != nil {
		return record{}, err
	}
	r, _, err := parseConfig(raw)
	r.Ref, r.Layers = reference.FamiliarString(named), layers
	return r, err
}

// Load adds the images of a file that docker save made, which gzip or zstd may have compressed, by
// all their names. Images for other architectures are added, too. If it fails, the images before
// stay.
func (s *Store) Load(ctx context.Context, archive string) ([]Image, error) {
	open := func() (io.ReadCloser, error) { return openArchive(ctx, archive) }
	fail := func(err error) ([]Image, error) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("load %s: %w", archive, printable{err})
	}
	list, err := tarball.LoadManifest(open)
	if err != nil {
		return fail(fmt.Errorf("not a file of docker save: %w", err))
	}
	var images []Image
	for _, d := range list {
		if len(d.RepoTags) == 0 {
			return fail(errors.New("an image has no name: save it by its name, not by its ID"))
		}
		for _, ref := range d.RepoTags {
			img, err := s.load(ctx, open, ref)
			if err != nil {
				return fail(err)
			}
			images = append(images, img)
		}
	}
	if len(images) == 0 {
		return fail(errors.New("has no images"))
	}
	return images, nil
}

func (s *Store) load(ctx context.Context, open tarball.Opener, ref string) (Image, error) {
	named, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return Image{}, err
	}
	img, err := tarball.Image(open, &tag)
	if err != nil {
		return Image{}, err
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return Image{}, err
	}
	r, diffIDs, err := parseConfig(raw)
	if err != nil {
		return Image{}, err
	}
	var sources []source
	for _, diffID := range diffIDs {
		sources = append(sources, source{diffID: diffID, open: func() (io.ReadCloser, error) {
			h, err := registry.NewHash(diffID)
			if err != nil {
				return nil, err
			}
			l, err := img.LayerByDiffID(h)
			if err != nil {
				return nil, err
			}
			return l.Uncompressed()
		}})
	}
	r.Ref = reference.FamiliarString(named)
	return s.add(ctx, r, sources, func(int64) {})
}

// openArchive opens a file of docker save. If it is not compressed, it is an io.Seeker, which makes
// finding things in it fast.
func openArchive(ctx context.Context, path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	head := make([]byte, 4)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return nil, err
	}
	if head = head[:n]; !bytes.HasPrefix(head, gzipMagic) && !bytes.HasPrefix(head, zstdMagic) {
		return struct {
			io.Reader
			io.Seeker
			io.Closer
		}{whileAlive(ctx, f), f, f}, nil
	}
	plain, done, err := decompress(whileAlive(ctx, f))
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, closerFunc(func() error { done(); return f.Close() })}, nil
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }
