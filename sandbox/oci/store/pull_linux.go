package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	registry "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
)

const (
	maxConfig = 4 << 20 // bytes of an image's configuration, all of which is read to memory
	// maxKept bounds what the store keeps of it, in bytes. Most have less than 10 kB; labels can be
	// large.
	maxKept   = 256 << 10
	maxLayers = 500 // as many as overlayfs joins; see also instances.mount of package oci
)

// Login says who asks a registry.
type Login bool

const (
	Anonymous   Login = false
	DockerLogin Login = true // with the credentials that docker login stored for this process
)

// Pull gets an image for Linux on arch, in Go's spelling, from its registry, also if the store has
// it. It takes the proxy and the certificate authorities of this process. Layers that the store has
// are not read again. Unless it succeeds, it leaves nothing and an older image of that name stays.
// An image that the registry does not have is fs.ErrNotExist; where the registry refuses access,
// the error says so. It fails when the registry is silent, but has no limit in total. progress may
// be nil; it gets lines without control characters.
func (s *Store) Pull(ctx context.Context, ref, arch string, as Login,
	progress func(line string)) (Image, error) {
	named, err := parse(ref)
	if err != nil {
		return Image{}, err
	}
	familiar := reference.FamiliarString(named)
	if progress == nil {
		progress = func(string) {}
	}
	img, err := s.pull(ctx, named, arch, as, progress)
	switch {
	case err == nil:
		return img, nil
	case ctx.Err() != nil:
		return Image{}, fmt.Errorf("pull %s: %w", familiar, context.Cause(ctx))
	}
	return Image{}, fmt.Errorf("pull %s: %w", familiar, printable{err})
}

func (s *Store) pull(ctx context.Context, named reference.Named, arch string, as Login,
	progress func(line string)) (Image, error) {
	// References of this package are a subset of those of the other.
	ref, err := name.ParseReference(named.String())
	if err != nil {
		return Image{}, err
	}
	familiar := reference.FamiliarString(named)
	progress("pulling " + familiar)
	img, err := selectImage(ctx, ref, arch, as)
	if err != nil {
		return Image{}, err
	}
	m, err := img.Manifest()
	if err != nil {
		return Image{}, err
	}
	if !m.Config.MediaType.IsConfig() || m.Config.Size < 0 ||
		m.Config.Size > maxConfig {
		return Image{}, fmt.Errorf("configuration of %d bytes of type %q: not a container image",
			m.Config.Size, m.Config.MediaType)
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return Image{}, err
	}
	r, diffIDs, err := parseConfig(raw)
	if err != nil {
		return Image{}, err
	}
	if r.Arch != arch {
		return Image{}, wrongPlatform([]string{"linux/" + r.Arch}, arch)
	}
	layers, err := img.Layers()
	if err != nil {
		return Image{}, err
	}
	if len(layers) != len(diffIDs) {
		return Image{}, fmt.Errorf("%d layers, and a configuration for %d", len(layers),
			len(diffIDs))
	}
	meter := &pullMeter{ref: familiar, at: time.Now(), progress: progress}
	sources := make([]source, len(layers))
	for i, l := range layers {
		d := m.Layers[i]
		if len(d.URLs) > 0 || !d.MediaType.IsLayer() {
			return Image{}, fmt.Errorf("layer of type %q, from other servers: %q: not supported",
				d.MediaType, d.URLs)
		}
		if d.Size < 0 || d.Size > math.MaxInt64/(maxLayers*100) {
			return Image{}, fmt.Errorf("layer of %d bytes", d.Size)
		}
		sources[i] = source{diffID: diffIDs[i], size: d.Size, open: func() (io.ReadCloser, error) {
			compressed, err := l.Compressed()
			if err != nil {
				return nil, fmt.Errorf("layer %s: %w", d.Digest, err)
			}
			return struct {
				io.Reader
				io.Closer
			}{meter.reader(compressed), compressed}, nil
		}}
	}
	r.Ref = familiar
	return s.add(ctx, r, sources, func(missing int64) { meter.total = missing })
}

// source is a layer that is read from elsewhere.
type source struct {
	diffID string
	size   int64 // bytes to read
	open   func() (io.ReadCloser, error)
}

// add unpacks the layers of an image that the store does not have, and adds the image. It calls
// begins with the bytes that it is going to read.
func (s *Store) add(ctx context.Context, r record, sources []source,
	begins func(size int64)) (Image, error) {
	if len(sources) == 0 || len(sources) > maxLayers {
		return Image{}, fmt.Errorf("%d layers: must be 1 to %d", len(sources), maxLayers)
	}
	byName := make(map[string]source)
	for _, src := range sources {
		name, err := layerName(src.diffID)
		if err != nil {
			return Image{}, err
		}
		byName[name] = src
		r.Layers = append(r.Layers, name)
	}
	r.Layers = onceEach(r.Layers)
	call, err := s.begin()
	if err != nil {
		return Image{}, err
	}
	defer call.end()
	missing, err := call.need(r.Layers)
	if err != nil {
		return Image{}, call.explain(ctx, err)
	}
	var size int64
	for _, name := range missing {
		size += byName[name].size
	}
	begins(size)
	var made []layer
	for _, name := range missing {
		l, err := call.read(ctx, byName[name])
		if err != nil {
			return Image{}, err
		}
		made = append(made, l)
	}
	img, err := call.commit(r, made)
	return img, call.explain(ctx, err)
}

func (m *making) read(ctx context.Context, src source) (layer, error) {
	r, err := src.open()
	if err != nil {
		return layer{}, err
	}
	defer r.Close()
	return m.unpack(ctx, r, src.diffID)
}

// selectImage reads the manifest of the image for Linux on arch.
func selectImage(ctx context.Context, ref name.Reference, arch string,
	as Login) (registry.Image, error) {
	options := []remote.Option{remote.WithContext(ctx),
		remote.WithTransport(impatient{remote.DefaultTransport})}
	if as == DockerLogin {
		options = append(options, remote.WithAuthFromKeychain(authn.DefaultKeychain))
	}
	desc, err := remote.Get(ref, options...)
	if err != nil {
		return nil, explainRegistry(ref, as, err)
	}
	switch {
	case desc.MediaType.IsImage():
		return desc.Image()
	case desc.MediaType.IsSchema1():
		return nil, errors.New("its manifest has the old format, schema 1: " +
			"push the image again with a current Docker")
	case !desc.MediaType.IsIndex():
		return nil, fmt.Errorf("%q is not a container image", desc.MediaType)
	}
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var has []string
	for _, d := range m.Manifests {
		if d.Platform == nil || !d.MediaType.IsImage() {
			continue
		}
		if d.Platform.OS == "linux" && d.Platform.Architecture == arch {
			return index.Image(d.Digest)
		}
		if d.Platform.OS != "unknown" { // an attestation
			has = append(has, d.Platform.OS+"/"+d.Platform.Architecture)
		}
	}
	slices.Sort(has)
	return nil, wrongPlatform(slices.Compact(has), arch)
}

func wrongPlatform(has []string, arch string) error {
	return fmt.Errorf("the image is for %s, not for linux/%s: use another one",
		strings.Join(has, ", "), arch)
}

// explainRegistry explains a registry's answer to the question for a manifest.
func explainRegistry(ref name.Reference, as Login, err error) error {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return err
	}
	host := ref.Context().RegistryStr()
	switch answer.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("%s does not have it: check the name: %w: %w", host, fs.ErrNotExist, err)
	case http.StatusUnauthorized, http.StatusForbidden:
		what := "check the name, or log in with docker login"
		if as == Anonymous {
			what = "check the name; if it needs a login, the daemon's owner can get it: " +
				"sandboxd images pull " + ref.String()
		}
		return fmt.Errorf("%s refuses access: %s: %w", host, what, err)
	}
	return err
}

// parseConfig reads the configuration of an image, and the diff IDs of its layers.
func parseConfig(raw []byte) (record, []string, error) {
	var config dockerspec.DockerOCIImage
	if err := json.Unmarshal(raw, &config); err != nil {
		return record{}, nil, fmt.Errorf("configuration of the image: %w", err)
	}
	if config.OS != "linux" {
		return record{}, nil, fmt.Errorf("the image is for %q, not for Linux", config.OS)
	}
	kept, err := json.Marshal(config.Config)
	if err != nil {
		return record{}, nil, err
	}
	if len(kept) > maxKept {
		return record{}, nil, fmt.Errorf("the image's environment, labels and commands have %s: "+
			"at most %s", formatSize(int64(len(kept))), formatSize(maxKept))
	}
	id, _, err := registry.SHA256(bytes.NewReader(raw))
	if err != nil {
		return record{}, nil, err
	}
	r := record{ID: id.String(), Arch: config.Architecture, Config: config.Config}
	if config.Created != nil {
		r.Created = *config.Created
	}
	var diffIDs []string
	for _, d := range config.RootFS.DiffIDs {
		diffIDs = append(diffIDs, d.String())
	}
	return r, diffIDs, nil
}

// printable is an error whose text may come from a registry: it prints without control characters.
type printable struct{ err error }

func (e printable) Unwrap() error { return e.err }

func (e printable) Error() string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, e.err.Error())
}
