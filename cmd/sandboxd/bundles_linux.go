package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/oci"
	"github.com/sandboxd/sandboxd/sandbox/oci/store"
)

func runtimeOf(ctx context.Context) (name, version string, err error) { return oci.Runtime(ctx) }

// enterBundles makes this process one that may keep containers without an engine, and their images.
// For an ordinary user it replaces this process by a new one in a user namespace.
func enterBundles(ctx context.Context, c *config.Loaded) error {
	state := string(c.State)
	// Inside, this process is root, whose defaults differ.
	err := oci.Enter(ctx, filepath.Join(state, bundlesDir), "SANDBOXD_STATE="+state,
		"SANDBOXD_OCI_IMAGES="+string(c.OCI.Images))
	if err == nil {
		return nil
	}
	return sandbox.Hint(fmt.Errorf("containers without an engine: %w", err), cmp.Or(
		sandbox.HintOf(err), "run it as root; or install Docker, and set backend: docker"))
}

// apart reports whether this process is root of an ordinary user's namespace, where the owners of
// files are others than for a Docker engine.
func apart() bool {
	_, yes := oci.Outside()
	return yes
}

// openBundles returns the backend of containers without an engine for a daemon with an ID.
func openBundles(c *config.Loaded, id string, log *slog.Logger) (bundles, error) {
	guests, err := findGuests(string(c.GuestDir))
	if err != nil {
		return nil, err
	}
	state := string(c.State)
	b, err := oci.New(oci.Options{
		Dir:      filepath.Join(state, bundlesDir),
		Images:   string(c.OCI.Images),
		GuestDir: filepath.Join(state, "guest"),
		Guest:    guests.Path,
		DaemonID: id,
		Dirs:     dirRules(c),
		CABundle: string(c.CABundle),
		Build:    buildBundle,
		Builds:   images.Has,
		Log:      log,
	})
	if err != nil {
		return nil, err // and no interface of a nil pointer
	}
	return b, nil
}

// buildBundle builds an image from the recipe that this program has, and adds it to the store.
func buildBundle(ctx context.Context, s *store.Store, ref string, progress func(string)) error {
	config, err := images.Config(ref)
	if err != nil {
		return sandbox.Hint(err, "build it on a machine with Docker, docker save it, and: sandboxd "+
			"images load FILE")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	files, out := io.Pipe()
	built := make(chan error, 1)
	go func() {
		err := withLines(progress, func(log io.Writer) error {
			return images.Files(ctx, ref, out, log)
		})
		out.CloseWithError(err) // nil is the end of the files
		built <- err
	}()
	_, err = s.Import(ctx, ref, files, sandbox.ImageConfig{ImageConfig: config})
	files.CloseWithError(err)
	cancel(err)
	return cmp.Or(<-built, err)
}

// hasBundleImage reports whether the store has the default image.
func hasBundleImage(c *config.Loaded) (bool, error) {
	if _, err := os.Stat(string(c.OCI.Images)); errors.Is(err, fs.ErrNotExist) {
		return false, nil // the daemon makes it
	}
	s, err := store.Open(string(c.OCI.Images))
	if err == nil {
		_, err = s.Image(c.Image)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
