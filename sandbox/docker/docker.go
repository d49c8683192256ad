// Package docker is the Backend that makes sandboxes from containers, with the Docker Engine API.
// Any image works: the guest is mounted read-only into the container and is its first process. SSH
// uses a unix socket on which this side listens. An engine that shares no files with this machine
// needs other ways: remote.go has them.
//
// It does not know the gateway, and trusts no process of a sandbox. One pure function,
// createRequest, decides what a container may do; golden files record its results.
package docker

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
)

// Name is the Instance.Backend of instances of this package.
const Name = "docker"

// DefaultHost is the engine of an empty Options.Host.
const DefaultHost = "unix:///var/run/docker.sock"

// Options configure a Backend. They are copied.
type Options struct {
	// Dir holds one directory per sandbox: its keys, its sockets, its name. Required, absolute,
	// not writable by others. It may be long: sockets are not bound by their path.
	Dir string
	// GuestDir holds copies of the files that sandboxes mount. They are named by checksum and never
	// replaced, because containers of earlier daemons still use them. Required, absolute.
	GuestDir string
	// Guest returns the path of the guest program for an architecture in Go's spelling ("amd64").
	// Required.
	Guest func(arch string) (string, error)
	// DaemonID marks the containers of this daemon. Required.
	DaemonID string

	// Dirs decides which directories of this machine sandboxes may mount. Zero allows none.
	Dirs hostdir.Rules

	// Engine, as in DOCKER_HOST; see NewClient. DefaultHost when empty.
	Host     string
	CABundle string // certificate authorities of this machine, PEM; empty searches the usual places
	// Build makes a missing image that Builds accepts, or the default image, and reports progress.
	// If it is nil, the error explains how to build the default image.
	Build func(ctx context.Context, ref string, progress func(string)) error
	// Builds reports whether Build makes an image besides the default one; nil means none. Those
	// images are never pulled.
	Builds func(ref string) bool
	Log    *slog.Logger // nil discards
}

// Backend makes sandboxes from containers. It implements every group of a sandbox.Backend. Its
// methods may be called concurrently.
//
// It implements the life cycle of instances itself. Its parts implement the rest and use the engine
// only: none of them knows the Backend.
type Backend struct {
	*images // sandbox.Imager, and Sweep
	*meter  // sandbox.Meter

	opts      Options
	engine    *engine
	instances *instances
	sockets   *guestsock.Set
	volumes   *guestVolumes // of a remote engine
	state     stateDir
	files     *machine.Files

	at func(sandbox.Stage) // if not nil, called when Boot or Start enters a stage: for tests
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
	_ sandbox.Namer     = (*Backend)(nil)
	_ sandbox.Truster   = (*Backend)(nil)
)

// New returns a Backend. It does not talk to the engine: an engine that is down is an error of
// Boot, not of New.
func New(o Options) (*Backend, error) {
	if o.Host == "" {
		o.Host = DefaultHost
	}
	switch {
	case o.DaemonID == "":
		return nil, errors.New("docker: no daemon ID")
	case o.Guest == nil:
		return nil, errors.New("docker: no guest program")
	case !filepath.IsAbs(o.Dir) || !filepath.IsAbs(o.GuestDir):
		return nil, fmt.Errorf("docker: directories %q and %q are not both absolute", o.Dir,
			o.GuestDir)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for dir, mode := range map[string]os.FileMode{o.Dir: 0o700, o.GuestDir: 0o755} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return nil, fmt.Errorf("docker: %w", err)
		}
	}
	e, err := newEngine(o.Host, o.Dir, o.DaemonID, o.Log)
	if err != nil {
		return nil, err
	}
	e.forgetSeen()
	b := &Backend{opts: o, engine: e, instances: &instances{engine: e},
		state: stateDir{machine.State{State: guestconfig.State(o.Dir)}},
		files: machine.NewFiles(o.GuestDir, o.Guest, o.CABundle)}
	b.sockets = guestsock.NewSet(b.state.RunDir, o.Log)
	b.volumes = &guestVolumes{engine: e, filling: make(chan struct{}, 1)}
	b.images = newImages(e, b.instances, o)
	b.meter = newMeter(e, b.sockets)
	return b, nil
}

// Close stops listening for guests. Containers keep running and their guests call again. Pending
// calls end with an error.
func (b *Backend) Close() error {
	b.sockets.Close()
	return b.engine.close()
}

func (b *Backend) log(id string) *slog.Logger { return b.opts.Log.With("sandbox", id) }

// containerName is the container's name in docker ps. It also separates our containers from others
// that were started from a committed image, which inherit the labels.
func containerName(id string) string { return "sandboxd-" + id }

// stateDir is the directory of all instances' state.
type stateDir struct{ machine.State }
