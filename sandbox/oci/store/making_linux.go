package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// lockShared waits until Collect is not deciding what to remove, which is a moment. The caller
// unlocks soon.
func (s *Store) lockShared() (unlock func(), err error) { return s.lock(unix.LOCK_SH) }

func (s *Store) lock(how int) (unlock func(), err error) {
	f, err := os.OpenFile(s.path(lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the image store: %w", err)
	}
	if err := flock(f, how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock of the image store: %w", err)
	}
	return func() { unlockFile(f) }, nil
}

// flock locks a file. A signal does not end its wait.
func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// unlockFile unlocks a file and closes it. It does not leave that to Close: a program that is just
// being started has the descriptor, too.
func unlockFile(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // only that of a bad descriptor fails
	f.Close()
}

// making is a call that adds layers or an image. It has a directory in tmp, which is alive as long
// as its lock is held.
type making struct {
	store *Store
	dir   string
	lock  *os.File
}

// needsFile lists the layers that a call counts on, as JSON. Collect keeps them.
const needsFile = "needs"

// begin begins a call. The caller must end it.
func (s *Store) begin() (*making, error) {
	// Without the lock Collect could see the directory before it is locked itself.
	unlock, err := s.lockShared()
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(s.path(tmpDir), "call-")
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.Close() // also if it is nil
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &making{store: s, dir: dir, lock: f}, nil
}

// end removes what the call did not commit.
func (m *making) end() {
	_ = RemoveAll(context.Background(), m.dir) // or Collect does it
	unlockFile(m.lock)
}

// need keeps the layers from Collect until end, and returns those that are missing.
func (m *making) need(layers []string) (missing []string, err error) {
	data, err := json.Marshal(layers)
	if err != nil {
		return nil, err
	}
	unlock, err := m.store.lockShared()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := os.WriteFile(filepath.Join(m.dir, needsFile), data, 0o600); err != nil {
		return nil, err
	}
	for _, name := range layers {
		_, err := m.store.layerSize(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, name)
		case err != nil:
			return nil, err
		}
	}
	return missing, nil
}

// layer is a layer that a call has made in its own directory.
type layer struct {
	name string
	dir  string // has filesDir and sizeFile, both durable
}

// commit moves the layers into the store and then writes the image's record. It adds the sizes of
// its layers to the record.
func (m *making) commit(r record, made []layer) (Image, error) {
	s := m.store
	unlock, err := s.lockShared()
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	for _, l := range made {
		err := os.Rename(l.dir, s.path(layersDir, l.name))
		if err != nil && !errors.Is(err, fs.ErrExist) { // another call was faster
			return Image{}, err
		}
	}
	if err := syncDir(s.path(layersDir)); err != nil {
		return Image{}, err
	}
	r.Layers, r.Size = onceEach(r.Layers), 0
	for _, name := range r.Layers {
		size, err := s.layerSize(name)
		if err != nil {
			return Image{}, err
		}
		r.Size += size
	}
	if err := s.writeRecord(namesDir, r.Ref, r); err != nil {
		return Image{}, err
	}
	r.written = time.Now()
	return s.image(r), nil
}

// onceEach keeps only the highest of equal layers: it hides all of those below, and overlayfs
// refuses to mount a directory twice.
func onceEach(layers []string) []string {
	var once []string
	for i, name := range layers {
		if !slices.Contains(layers[i+1:], name) {
			once = append(once, name)
		}
	}
	return once
}

// Collect removes what no name and no holder needs, and what interrupted calls left behind. It does
// not disturb calls in progress.
func (s *Store) Collect(ctx context.Context) error {
	dead, err := s.condemn()
	if err != nil {
		return fmt.Errorf("collect images: %w", err)
	}
	for _, path := range dead {
		if ctx.Err() != nil {
			return context.Cause(ctx) // the rest is still in tmp
		}
		if err := RemoveAll(ctx, path); err != nil {
			return fmt.Errorf("collect images: %w", err)
		}
	}
	return nil
}

// condemn returns what to remove from tmp. It moves layers that nothing needs there first: a layer
// that is removed by half would pass for a whole one.
func (s *Store) condemn() (dead []string, err error) {
	unlock, err := s.lock(unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	needed := make(map[string]bool)
	for r, err := range s.records(namesDir, holdsDir) {
		if err != nil {
			return nil, err
		}
		for _, name := range r.Layers {
			needed[name] = true
		}
	}
	calls, err := os.ReadDir(s.path(tmpDir))
	if err != nil {
		return nil, err
	}
	for _, e := range calls {
		path := s.path(tmpDir, e.Name())
		alive, needs, err := examine(path)
		if err != nil {
			return nil, err
		}
		if !alive {
			dead = append(dead, path)
		}
		for _, name := range needs {
			needed[name] = true
		}
	}
	layers, err := os.ReadDir(s.path(layersDir))
	if err != nil {
		return nil, err
	}
	trash := ""
	for _, e := range layers {
		if needed[e.Name()] {
			continue
		}
		if trash == "" {
			if trash, err = os.MkdirTemp(s.path(tmpDir), "trash-"); err != nil {
				return nil, err
			}
			dead = append(dead, trash)
		}
		err := os.Rename(s.path(layersDir, e.Name()), filepath.Join(trash, e.Name()))
		if err != nil {
			return nil, err
		}
	}
	return dead, nil
}

// examine reports whether a call still uses what is at path in tmp, and the layers that the call
// needs.
func examine(path string) (alive bool, needs []string, err error) {
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil, nil // of a call that is ending, or no directory of a call
	}
	if err != nil {
		return false, nil, err
	}
	defer f.Close()
	err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return false, nil, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil, err
	}
	data, err := os.ReadFile(filepath.Join(path, needsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	return true, needs, json.Unmarshal(data, &needs)
}

// RemoveAll removes a directory with all that it has; a missing one is no error. It runs rm(1),
// which needs no descriptor for each level: a program may make directories in each other by the
// thousand.
func RemoveAll(ctx context.Context, dir string) error {
	out, err := exec.CommandContext(ctx, "rm", "-rf", "--one-file-system", "--", dir).
		CombinedOutput()
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w: %.200q", dir, err, out)
	}
	return nil
}
