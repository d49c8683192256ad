// Package images holds the recipes of the images that sandboxd brings along, and builds them
// into a Docker engine when one is missing. It runs the same scripts as scripts/setup, from a
// copy inside the binary, so that an installed sandboxd needs no source tree. It knows nothing
// of sandboxes: images of other origins are the engine's to pull.
package images

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Default is the image of a sandbox whose spec names none.
const Default = "sandboxd/base:latest"

// Python is the image with a Jupyter kernel; what is made for documents and media beside it is sandboxd/python-full.
const Python = "sandboxd/python:latest"

// ErrUnknown says that a reference is none of ours: there is no recipe to build it from.
var ErrUnknown = errors.New("no recipe for this image")

//go:embed base busybox empty layer python python-full
var recipes embed.FS

// Build runs the recipe of ref and leaves the image in the engine that the docker command talks
// to, under ref. What the build prints goes to out as it comes. An image that is up to date is
// not built again. Ending ctx ends the build with all that it started.
//
// It needs the docker command, and either mmdebstrap or an engine that may pull Debian's image;
// its errors say what is missing. ErrUnknown is returned for an image that is not ours.
func Build(ctx context.Context, ref string, out io.Writer) error {
	name, err := recipe(ref)
	if err != nil {
		return err
	}
	for _, tool := range []string{"bash", "docker"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("building image %s: the %s command is missing; install it, or name an image that the engine can pull", ref, tool)
		}
	}

	dir, err := os.MkdirTemp("", "sandboxd-images-")
	if err != nil {
		return fmt.Errorf("building image %s: %w", ref, err)
	}
	defer os.RemoveAll(dir)
	if err := extract(dir); err != nil {
		return fmt.Errorf("building image %s: %w", ref, err)
	}

	tail := &lastLines{w: out}
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(dir, name, "build"))
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = tail, tail
	// The whole group is told at once: bash waits for the program it runs before it obeys.
	// It is not killed outright, because mmdebstrap has mounts to undo.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building image %s: %w", ref, context.Cause(ctx))
		}
		return fmt.Errorf("building image %s: %w: %s", ref, err, tail)
	}
	return nil
}

// Has reports whether ref is an image of ours, which Build makes.
func Has(ref string) bool {
	_, err := recipe(ref)
	return err == nil
}

// recipe returns the folder of the recipe that makes ref: sandboxd/NAME without a tag, with latest, or with the tag that
// belongs to the recipe at hand. Its error wraps ErrUnknown.
func recipe(ref string) (string, error) {
	name, ours := strings.CutPrefix(ref, "sandboxd/")
	name, tag, tagged := strings.Cut(name, ":")
	if !ours || !fs.ValidPath(name) || strings.Contains(name, "/") {
		return "", fmt.Errorf("image %s: %w", ref, ErrUnknown)
	}
	if _, err := fs.Stat(recipes, path.Join(name, "build")); err != nil {
		return "", fmt.Errorf("image %s: %w", ref, ErrUnknown)
	}
	if tagged && tag != "latest" && (name != "base" || tag != checksum(baseRecipe...)[:12]) {
		return "", fmt.Errorf("image %s: %w: this version makes sandboxd/%s:latest", ref, ErrUnknown, name)
	}
	return name, nil
}

// baseRecipe lists the files whose checksum names the base image, in the order in which
// base/build reads them.
var baseRecipe = []string{"base/build", "base/Dockerfile", "base/packages", "base/dpkg.cfg", "base/pip.conf"}

// checksum returns the SHA-256 of the named recipe files, one after the other, in hexadecimal.
func checksum(names ...string) string {
	sum := sha256.New()
	for _, name := range names {
		data, err := recipes.ReadFile(name)
		if err != nil {
			// Embedded files are there or the program does not compile; a test reads each.
			panic(err)
		}
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// extract writes all recipes to dir: some begin with the image of another one.
func extract(dir string) error {
	return os.CopyFS(dir, recipes)
}

// lastLines passes everything on to w and remembers the end of it for an error message.
type lastLines struct {
	w   io.Writer
	end []byte
}

// Write never fails on account of w: a reader who went away does not break the build.
func (l *lastLines) Write(p []byte) (int, error) {
	_, _ = l.w.Write(p)
	const most = 512
	l.end = append(l.end, p...)
	if extra := len(l.end) - most; extra > 0 {
		l.end = append(l.end[:0], l.end[extra:]...)
	}
	return len(p), nil
}

// String returns the last lines, at most three, joined by "; ".
func (l *lastLines) String() string {
	lines := strings.Split(strings.TrimSpace(string(l.end)), "\n")
	if len(lines) > 3 {
		lines = lines[len(lines)-3:]
	}
	return strings.Join(lines, "; ")
}
