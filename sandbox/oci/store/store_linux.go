package store

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/distribution/reference"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
)

// Store is a directory with images. Its methods are safe for concurrent use.
type Store struct{ dir string }

// Directories and files of a store. See the package comment.
const (
	layersDir = "layers"
	namesDir  = "names"
	holdsDir  = "holds"
	tmpDir    = "tmp"
	lockFile  = "lock" // of the store, and of each directory in tmpDir

	filesDir = "fs"   // in a layer's directory
	sizeFile = "size" // likewise
)

// Open opens the store in dir, or creates it. dir is an absolute path without what separates the
// options of a mount: colons, commas and backslashes. A directory that exists must belong to the
// user of this process, with mode 0700.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) || strings.ContainsAny(dir, `:,\`) {
		return nil, fmt.Errorf("image store %q: must be an absolute path without colons, commas "+
			"and backslashes", dir)
	}
	s := &Store{dir: filepath.Clean(dir)}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	info, err := os.Lstat(s.dir)
	if err != nil {
		return nil, fmt.Errorf("image store: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || info.Mode().Perm() != 0o700 ||
		!ok || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("image store %s: must be a directory of user %d with mode 0700, "+
			"as its layers have setuid files: chown and chmod it, or choose another", s.dir,
			os.Geteuid())
	}
	for _, sub := range []string{layersDir, namesDir, holdsDir, tmpDir} {
		if err := os.Mkdir(s.path(sub), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("image store: %w", err)
		}
	}
	return s, syncDir(s.dir)
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// Config is what an image says of the programs that run in it.
type Config = dockerspec.DockerOCIImageConfig

// Image is an image in the store.
type Image struct {
	Ref     string    // the name it was asked for by, as users type it, with a tag or digest
	ID      string    // "sha256:…" of its configuration
	Arch    string    // Go's spelling
	Config  Config    // what to run in it
	Layers  []string  // directories, the lowest first; none is there twice
	Size    int64     // bytes that the files of its layers occupy
	Sizes   []int64   // of these, those of each layer
	Created time.Time // zero if unknown
	Used    time.Time // when it got its name, or the last Touch; zero if it has no name
}

// record is the content of a file in names or holds.
type record struct {
	Holder  string    `json:"holder,omitempty"` // of a file in holds
	Ref     string    `json:"ref"`
	ID      string    `json:"id"`
	Arch    string    `json:"arch"`
	Config  Config    `json:"config"`
	Layers  []string  `json:"layers"` // their names, the lowest first
	Size    int64     `json:"size"`
	Created time.Time `json:"created,omitzero"`

	written time.Time // the time of the file
}

var (
	validID    = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	validLayer = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
)

// layerName returns the name of the layer with a diff ID, "sha256:…". It is shorter than the
// digest: the options of a mount, which list all layers, may have 4096 bytes.
func layerName(diffID string) (string, error) {
	if !validID.MatchString(diffID) {
		return "", fmt.Errorf("layer %q: not a SHA-256 digest", diffID)
	}
	sum, err := hex.DecodeString(strings.TrimPrefix(diffID, "sha256:"))
	return base64.RawURLEncoding.EncodeToString(sum), err
}

// digestOf returns the digest that a layer's name stands for.
func digestOf(layer string) (string, error) {
	sum, err := base64.RawURLEncoding.DecodeString(layer)
	return "sha256:" + hex.EncodeToString(sum), err
}

func (s *Store) layerDir(name string) string { return s.path(layersDir, name, filesDir) }

// layerSize returns the bytes that a layer occupies. A missing layer is fs.ErrNotExist.
func (s *Store) layerSize(name string) (int64, error) {
	text, err := os.ReadFile(s.path(layersDir, name, sizeFile))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// layerNames returns the names of an image's layers. It refuses directories outside the store.
func (s *Store) layerNames(img Image) ([]string, error) {
	var names []string
	for _, dir := range img.Layers {
		name := filepath.Base(filepath.Dir(dir))
		if !validLayer.MatchString(name) || s.layerDir(name) != dir {
			return nil, fmt.Errorf("layer %q: not in the store %s", dir, s.dir)
		}
		names = append(names, name)
	}
	return names, nil
}

func (s *Store) image(r record) Image {
	img := Image{Ref: r.Ref, ID: r.ID, Arch: r.Arch, Config: r.Config, Size: r.Size,
		Created: r.Created}
	if r.Holder == "" {
		img.Used = r.written
	}
	for _, name := range r.Layers {
		size, _ := s.layerSize(name) // a removed one has no size
		img.Layers, img.Sizes = append(img.Layers, s.layerDir(name)), append(img.Sizes, size)
	}
	return img
}

// parse checks the name of an image. Without a tag it means :latest.
func parse(ref string) (reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", ref, err)
	}
	return reference.TagNameOnly(named), nil
}

// Image finds an image by its name or its ID. An ID is also found as long as the image is held. A
// missing image is fs.ErrNotExist.
func (s *Store) Image(ref string) (Image, error) {
	r, err := s.find(ref)
	if err != nil {
		return Image{}, err
	}
	return s.whole(r)
}

// whole returns an image that has all of its layers.
func (s *Store) whole(r record) (Image, error) {
	img := s.image(r)
	for _, dir := range img.Layers {
		if _, err := os.Stat(dir); err != nil {
			// Not wrapped: it is no missing image.
			return Image{}, fmt.Errorf("image %s is damaged: remove it and get it again: %s", r.Ref,
				err.Error())
		}
	}
	return img, nil
}

func (s *Store) find(ref string) (record, error) {
	if validID.MatchString(ref) {
		for r, err := range s.records(namesDir, holdsDir) {
			if err != nil || r.ID == ref {
				return r, err
			}
		}
		return record{}, fmt.Errorf("image %s: not in the store: %w", ref, fs.ErrNotExist)
	}
	named, err := parse(ref)
	if err != nil {
		return record{}, err
	}
	familiar := reference.FamiliarString(named)
	r, err := readRecord(s.path(namesDir, fileName(familiar)))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("image %s: not in the store: %w", familiar, fs.ErrNotExist)
	}
	return r, err
}

// List returns the images that pass, in the order of their names; nil passes all. An image with two
// names is there twice.
func (s *Store) List(passes func(Image) bool) ([]Image, error) {
	var images []Image
	for r, err := range s.records(namesDir) {
		if err != nil {
			return nil, err
		}
		if img := s.image(r); passes == nil || passes(img) {
			images = append(images, img)
		}
	}
	slices.SortFunc(images, func(a, b Image) int { return strings.Compare(a.Ref, b.Ref) })
	return images, nil
}

// Remove removes the name of an image, or by its ID all names of it. Its files stay until Collect.
// A missing image is fs.ErrNotExist.
func (s *Store) Remove(ref string) error {
	r, err := s.find(ref)
	if err != nil {
		return err
	}
	names := []string{r.Ref}
	if validID.MatchString(ref) {
		names = nil
		for r, err := range s.records(namesDir) {
			if err != nil {
				return err
			}
			if r.ID == ref {
				names = append(names, r.Ref)
			}
		}
		if len(names) == 0 {
			return fmt.Errorf("image %s: has no name: %w", ref, fs.ErrNotExist)
		}
	}
	for _, name := range names {
		err := os.Remove(s.path(namesDir, fileName(name)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return syncDir(s.path(namesDir))
}

// Touch sets when an image, by its name, was used to now. A missing image is fs.ErrNotExist.
func (s *Store) Touch(ref string) error {
	named, err := parse(ref)
	if err != nil {
		return err
	}
	now := time.Now()
	return os.Chtimes(s.path(namesDir, fileName(reference.FamiliarString(named))), now, now)
}

// Held returns the image that holder has. If there is none it is fs.ErrNotExist.
func (s *Store) Held(holder string) (Image, error) {
	r, err := readRecord(s.path(holdsDir, fileName(holder)))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("image of %s: not in the store: %w", holder, fs.ErrNotExist)
	}
	if err != nil {
		return Image{}, err
	}
	return s.whole(r)
}

// Hold keeps the layers of an image for holder until Release, also after Remove and across
// restarts. A holder has one image: another replaces it. If a layer was removed already the error
// is fs.ErrNotExist.
func (s *Store) Hold(holder string, img Image) error {
	names, err := s.layerNames(img)
	if err != nil {
		return fmt.Errorf("hold %s: %w", img.Ref, err)
	}
	unlock, err := s.lockShared()
	if err != nil {
		return err
	}
	defer unlock()
	for _, name := range names {
		if _, err := s.layerSize(name); err != nil {
			return fmt.Errorf("hold %s: %w", img.Ref, err)
		}
	}
	return s.writeRecord(holdsDir, holder, record{Holder: holder, Ref: img.Ref, ID: img.ID,
		Arch: img.Arch, Config: img.Config, Layers: names, Size: img.Size, Created: img.Created})
}

// Release ends a Hold. It is no error if there is none.
func (s *Store) Release(holder string) error {
	err := os.Remove(s.path(holdsDir, fileName(holder)))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return syncDir(s.path(holdsDir))
}

// fileName returns the name of the file of a name or a holder, which have any characters and any
// length.
func fileName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:]) + ".json"
}

// records returns the records of directories, one at a time: their sum has no bound.
func (s *Store) records(dirs ...string) iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		for _, dir := range dirs {
			entries, err := os.ReadDir(s.path(dir))
			if err != nil {
				yield(record{}, err)
				return
			}
			for _, e := range entries {
				r, err := readRecord(s.path(dir, e.Name()))
				if errors.Is(err, fs.ErrNotExist) { // removed since
					continue
				}
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
	}
}

func readRecord(path string) (record, error) {
	info, err := os.Stat(path)
	if err != nil {
		return record{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	r := record{written: info.ModTime()}
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("%s is damaged: remove it: %w", path, err)
	}
	for _, name := range r.Layers {
		if !validLayer.MatchString(name) {
			return record{}, fmt.Errorf("%s is damaged: remove it: layer %q", path, name)
		}
	}
	return r, nil
}

// writeRecord writes the record of key, atomically and durably. The caller has locked the store.
func (s *Store) writeRecord(sub, key string, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(s.path(tmpDir), "record-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := writeSync(tmp, data); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), s.path(sub, fileName(key))); err != nil {
		return err
	}
	return syncDir(s.path(sub))
}

// writeSync writes the whole file, durably, and closes it.
func writeSync(f *os.File, data []byte) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
