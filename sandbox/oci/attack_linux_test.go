package oci

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/attack"
)

// debian returns the directory of a store that has the default image.
var debian = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(shared.dir, "debian")
	s, err := store.Open(dir)
	if err != nil {
		return "", err
	}
	file := os.Getenv("SANDBOXD_TEST_BASE") // what docker save made, for a machine without Docker
	if file == "" {
		file = filepath.Join(shared.dir, "debian.tar")
		defer os.Remove(file)
		out, err := exec.Command("docker", "save", "-o", file,
			sandbox.DefaultImage).CombinedOutput()
		if err != nil {
			return "", errors.New("docker save (scripts/setup test): " + string(out))
		}
	}
	_, err = s.Load(context.Background(), file)
	return dir, err
})

func TestAttacks(t *testing.T) {
	attack.Suite{
		Open: func(t *testing.T) sandbox.Backend {
			images, err := debian()
			if err != nil {
				t.Fatal(err)
			}
			return testBackend(t, func(o *Options) { o.Images = images })
		},
		Spec:  sandbox.Spec{Image: sandbox.DefaultImage},
		State: func(b sandbox.Backend) guestconfig.State { return b.(*Backend).state.State },
		// What a sandbox writes is elsewhere in its directory.
		Dirs: func(b sandbox.Backend) []string {
			all := []string{b.(*Backend).opts.GuestDir}
			ids, err := b.(*Backend).ids()
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				all = append(all, b.(*Backend).state.RunDir(id), b.(*Backend).state.TrustDir(id))
			}
			return all
		},
		Names: func(_ *testing.T, b sandbox.Backend, inst sandbox.Instance) (paths []string) {
			for _, name := range nameFiles {
				paths = append(paths, b.(*Backend).in(inst.ID, namesDir)+"/"+name)
			}
			return paths
		},
		Gone: func(t *testing.T, b sandbox.Backend, id string) {
			ids, err := b.(*Backend).ids()
			if err != nil || slices.Contains(ids, id) || b.(*Backend).sockets.IsOpen(id) {
				t.Errorf("left: %v, %v", ids, err)
			}
		},
		Has: func(t *testing.T, b sandbox.Backend, inst sandbox.Instance, path string) bool {
			_, err := os.Lstat(b.(*Backend).in(inst.ID, upperDir) + path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			return err == nil
		},
	}.Run(t)
}
