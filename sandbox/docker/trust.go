package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
)

// trustFile is the file with certificate authorities in an instance's trust directory. Its readers
// in the sandbox may have any user ID.
const trustFile = "ca.crt"

// trustDir is mounted in the sandbox.
func (d stateDir) trustDir(id string) string { return filepath.Join(d.Dir(id), "trust") }

func errNoBundle() error {
	return fmt.Errorf("trust host: %w: this machine has no bundle of certificate authorities",
		sandbox.ErrUnsupported)
}

// Trust replaces the authorities besides those of this machine. See sandbox.Truster.
func (b *Backend) Trust(ctx context.Context, inst sandbox.Instance, authorities []byte) error {
	err := b.trust(ctx, inst, authorities)
	if err != nil {
		return fmt.Errorf("certificate authorities of %s: %w", inst.ID, err)
	}
	return nil
}

func (b *Backend) trust(ctx context.Context, inst sandbox.Instance, authorities []byte) error {
	if !guestconfig.ValidID.MatchString(inst.ID) {
		return fmt.Errorf("id %q is not a DNS label", inst.ID)
	}
	if k, err := b.state.ReadKeys(inst.ID); err == nil && k.Listens() {
		return b.trustRemote(ctx, inst, k, authorities)
	}
	dir := b.state.trustDir(inst.ID)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return sandbox.ErrUnsupported
	} else if err != nil {
		return err
	}
	bundle, err := b.files.placeBundle()
	if err != nil {
		return err
	}
	if bundle == "" {
		return errNoBundle()
	}
	b.files.trust.Lock()
	defer b.files.trust.Unlock()
	return writeTrust(dir, bundle, authorities)
}

// makeTrust makes an instance's trust directory.
func makeTrust(dir, bundle string, authorities []byte) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := writeTrust(dir, bundle, authorities); err != nil {
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
