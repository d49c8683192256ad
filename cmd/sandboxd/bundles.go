package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/docker"
	"github.com/sandboxd/sandboxd/sandbox/oci"
)

// bundles is the backend of containers without an engine. It needs Linux.
type bundles interface {
	sandbox.Backend
	io.Closer
}

// bundlesDir is the directory in the state directory with sandboxes without an engine.
const bundlesDir = "containers"

// hasBundles reports whether a state directory has sandboxes without an engine.
func hasBundles(state string) bool {
	all, err := os.ReadDir(filepath.Join(state, bundlesDir))
	return err == nil && slices.ContainsFunc(all, func(e os.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), ".")
	})
}

// backendOf returns the backend of sandboxes that name none. With backend auto, it is Docker's
// engine if one is configured or installed, also while it is down, and otherwise the one without an
// engine if this machine can run it.
func backendOf(c *config.Loaded) string {
	if c.Backend != config.BackendAuto {
		return c.Backend
	}
	if hasEngine(c) {
		return docker.Name
	}
	ctx, cancel := context.WithTimeout(context.Background(), enginePatience)
	defer cancel()
	if _, _, err := runtimeOf(ctx); err != nil {
		return docker.Name
	}
	return oci.Name
}

// hasEngine reports whether this machine has a Docker engine, or is configured to use one.
func hasEngine(c *config.Loaded) bool {
	if c.Backend == docker.Name || engineHost(c) != "" {
		return true
	}
	if _, err := os.Stat(strings.TrimPrefix(docker.DefaultHost, "unix://")); err == nil {
		return true
	}
	_, err := exec.LookPath("dockerd")
	return err == nil
}

// bundleFacts describes the runtime, as engineFacts does for an engine.
func bundleFacts(ctx context.Context, c *config.Loaded) (facts, note string) {
	name, version, err := runtimeOf(ctx)
	if err != nil {
		return noAccount, "sandboxes cannot start; see: sandboxd doctor"
	}
	if found, _ := hasBundleImage(c); !found {
		note = "image " + c.Image + " is missing: the first sandbox builds or pulls it, which " +
			"takes a minute or more"
	}
	return name + " " + version + " without an engine; " + noAccount, note
}

// checkBundles checks what sandboxes without an engine need.
func (d doctor) checkBundles(ctx context.Context) []finding {
	name, version, err := runtimeOf(ctx)
	if err != nil {
		return []finding{{Check: "runtime", Found: err.Error(), Fix: sandbox.HintOf(err)}}
	}
	image := finding{Check: "image", OK: true, Found: d.cli.config.Image}
	if found, err := hasBundleImage(d.cli.config); err != nil {
		image.OK, image.Found = false, err.Error()
	} else if !found {
		image.Found += " is missing"
		image.Fix = "create a sandbox, which builds or pulls it"
	}
	return []finding{{Check: "engine", OK: true, Found: "none: sandboxes are containers of " +
		name + " (docs/how-to/without-docker.md)"},
		{Check: "runtime", OK: true, Found: name + " " + version}, image}
}
