package oci

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
)

// Options configure a Backend. They are copied.
type Options struct {
	// Dir holds one directory per sandbox: its keys, its sockets, its files. Required, absolute, on
	// a file system that can be the upper layer of an overlay: not itself an overlay.
	Dir string
	// Images is the directory of the image store, which several daemons may share. Required,
	// absolute.
	Images string
	// GuestDir holds copies of the files that sandboxes mount. Required, absolute.
	GuestDir string
	// Guest returns the path of the guest program for an architecture in Go's spelling ("amd64").
	// Required.
	Guest func(arch string) (string, error)
	// DaemonID marks the containers of this daemon. Required.
	DaemonID string

	// Dirs decides which directories of this machine sandboxes may mount. Zero allows none.
	Dirs hostdir.Rules

	CABundle string // certificate authorities of this machine, PEM; empty searches the usual places
	// Build makes a missing image that Builds accepts, or the default image, in the store, and
	// reports progress. If it is nil, such an image is an error.
	Build func(ctx context.Context, s *store.Store, ref string, progress func(string)) error
	// Builds reports whether Build makes an image besides the default one; nil means none. Those
	// images are never pulled.
	Builds func(ref string) bool
	Log    *slog.Logger // nil discards
}

// Backend makes sandboxes with an OCI runtime. Its methods may be called concurrently.
//
// It implements the life cycle of instances. Its parts know their directories and processes, and
// their images.
type Backend struct {
	*instances
	*imager // sandbox.Imager

	opts  Options
	files *machine.Files
}

var (
	_ sandbox.Backend   = (*Backend)(nil)
	_ sandbox.Finder    = (*Backend)(nil)
	_ sandbox.Reviser   = (*Backend)(nil)
	_ sandbox.Lifecycle = (*Backend)(nil)
	_ sandbox.Pauser    = (*Backend)(nil)
	_ sandbox.Imager    = (*Backend)(nil)
	_ sandbox.Meter     = (*Backend)(nil)
	_ sandbox.Networker = (*Backend)(nil)
	_ sandbox.Truster   = (*Backend)(nil)
	_ sandbox.Namer     = (*Backend)(nil)
)

// New returns a Backend. A missing runtime is an error of Boot, not of New.
func New(o Options) (*Backend, error) {
	switch {
	case o.DaemonID == "":
		return nil, errors.New("oci: no daemon ID")
	case o.Guest == nil:
		return nil, errors.New("oci: no guest program")
	}
	for _, dir := range []string{o.Dir, o.GuestDir, o.Images} {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("oci: directory %q is not absolute", dir)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for dir, mode := range map[string]os.FileMode{o.Dir: 0o700, o.GuestDir: 0o755} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return nil, fmt.Errorf("oci: %w", err)
		}
	}
	images, err := store.Open(o.Images)
	if err != nil {
		return nil, fmt.Errorf("oci: %w", err)
	}
	l := &instances{state: machine.State{State: guestconfig.State(o.Dir)}, images: images,
		runtime: &runtimes{root: filepath.Join(o.Dir, rootDir), byUser: byUser()},
		daemon:  o.DaemonID, logs: o.Log}
	l.sockets = guestsock.NewSet(l.state.RunDir, o.Log)
	return &Backend{instances: l, opts: o,
		imager: newImager(l, o),
		files:  machine.NewFiles(o.GuestDir, o.Guest, o.CABundle)}, nil
}

// rootDir is the directory in Options.Dir with the runtime's own state. It is no ID of an instance.
const rootDir = ".runtime"

// Close stops listening for guests. Containers keep running and their guests call again.
func (b *Backend) Close() error {
	b.sockets.Close()
	return nil
}
