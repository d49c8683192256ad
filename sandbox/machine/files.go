package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
)

// Files places the files of this machine that sandboxes mount.
type Files struct {
	copies placer
	guest  func(arch string) (string, error)
	bundle string
	trust  sync.Mutex // held while a trust directory is written
}

// NewFiles keeps copies of files in dir, named by checksum and never replaced, because sandboxes of
// earlier daemons still use them. guest returns the path of the guest program for an architecture
// in Go's spelling; bundle is as for guestconfig.FindBundle.
func NewFiles(dir string, guest func(arch string) (string, error), bundle string) *Files {
	return &Files{copies: placer{dir: dir}, guest: guest, bundle: bundle}
}

// Place returns the paths of copies of the guest program and, unless trust is TrustImage, of this
// machine's certificate authorities. ca is empty if there are none and trust does not ask for them.
func (f *Files) Place(arch string, trust sandbox.Trust) (guest, ca string, err error) {
	source, err := f.guest(arch)
	if err != nil {
		return "", "", fmt.Errorf("guest program for %s: %w", arch, err)
	}
	if guest, err = f.copies.place(source, "guest", 0o555); err != nil {
		return "", "", fmt.Errorf("guest program: %w", err)
	}
	if trust == sandbox.TrustImage {
		return guest, "", nil
	}
	if ca, err = f.placeBundle(); err != nil {
		return "", "", err
	}
	if ca == "" && trust == sandbox.TrustHost {
		return "", "", sandbox.Hint(errNoBundle(), "install ca-certificates, or use --trust image")
	}
	return guest, ca, nil
}

// MayTrust returns an error if authorities were asked for besides those of a bundle that this
// machine does not have.
func MayTrust(bundle string, authorities []byte) error {
	if bundle != "" || len(authorities) == 0 {
		return nil
	}
	return sandbox.Hint(errNoBundle(),
		"install ca-certificates, or leave the secrets out with --trust image")
}

// Write returns the path of a file with text.
func (f *Files) Write(text []byte, name string) (string, error) {
	return f.copies.write(text, name, 0o444)
}

// placeBundle copies this machine's certificate authorities. It returns "" if there are none.
func (f *Files) placeBundle() (string, error) {
	bundle, err := guestconfig.FindBundle(f.bundle)
	if err != nil || bundle == "" {
		return "", err
	}
	path, err := f.copies.place(bundle, "ca", 0o444)
	if err != nil {
		return "", fmt.Errorf("certificate bundle: %w", err)
	}
	return path, nil
}

// State is the directory of all instances' state, with a directory for each.
type State struct{ guestconfig.State }

// RunDir returns the directory of an instance's sockets, which it mounts at GuestRun.
func (s State) RunDir(id string) string { return filepath.Join(s.Dir(id), "run") }

// TrustDir returns the directory that an instance mounts at GuestTrust.
func (s State) TrustDir(id string) string { return filepath.Join(s.Dir(id), "trust") }

// trustFile is the file with certificate authorities in an instance's trust directory. Its readers
// in the sandbox may have any user ID.
const trustFile = "ca.crt"

func errNoBundle() error {
	return fmt.Errorf("trust host: %w: this machine has no bundle of certificate authorities",
		sandbox.ErrUnsupported)
}

// Trust replaces the authorities in a trust directory, as sandbox.Truster describes it.
func (f *Files) Trust(dir string, authorities []byte) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return sandbox.ErrUnsupported
	} else if err != nil {
		return err
	}
	bundle, err := f.placeBundle()
	if err != nil {
		return err
	}
	if bundle == "" {
		return errNoBundle()
	}
	f.trust.Lock()
	defer f.trust.Unlock()
	return writeTrust(dir, bundle, authorities)
}

// MakeTrust makes a trust directory with this machine's certificate authorities, and more in PEM.
func (f *Files) MakeTrust(dir string, authorities []byte) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := f.Trust(dir, authorities); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755) // #nosec G302 -- for every user of the sandbox; its parent is ours
}

// writeTrust replaces the file in dir: the bundle, and more authorities in PEM. Without more it is
// the bundle itself, where the file system allows it, because each sandbox has one.
func writeTrust(dir, bundle string, authorities []byte) error {
	path, next := filepath.Join(dir, trustFile), filepath.Join(dir, ".new")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	defer os.Remove(next) // no effect after the rename
	if len(authorities) == 0 && os.Link(bundle, next) == nil {
		return os.Rename(next, path)
	}
	text, err := os.ReadFile(bundle)
	if err != nil {
		return err
	}
	if n := len(text); n > 0 && text[n-1] != '\n' {
		text = append(text, '\n')
	}
	if err := os.WriteFile(next, append(text, authorities...), 0o600); err != nil {
		return err
	}
	if err := os.Chmod(next, 0o444); err != nil { // #nosec G302 -- certificates are public
		return err
	}
	return os.Rename(next, path)
}
