// Package images contains the recipes of sandboxd's own images, and builds a missing one into a
// Docker engine, or as a tar file. It runs the same scripts as scripts/setup, from a copy inside
// the binary, so that an installed sandboxd needs no source tree. It knows nothing of sandboxes;
// all other images are pulled.
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

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox/signals"
)

// Default is the image of a sandbox whose spec names none.
const Default = "sandboxd/base:latest"

// Python is the image with a Jupyter kernel; sandboxd/python-full also has packages for documents
// and media.
const Python = "sandboxd/python:latest"

// ErrUnknown means that sandboxd has no recipe for the reference.
var ErrUnknown = errors.New("no recipe for this image")

//go:embed base busybox empty layer python python-full
var recipes embed.FS

// Build runs the recipe of ref, and tags the image as ref in the engine at host, in the form of
// DOCKER_HOST; empty means that of the docker command. It copies the output of the build to out. It
// does not build an up-to-date image again. The end of ctx ends the build and its processes.
//
// It needs the docker command, and either mmdebstrap or an engine that may pull Debian's image; its
// errors say what is missing. It returns ErrUnknown for an image without a recipe.
func Build(ctx context.Context, host, ref string, out io.Writer) error {
	var env []string
	if host != "" {
		env = append(env, "DOCKER_HOST="+host)
		if strings.HasPrefix(host, "tcp://") && os.Getenv("DOCKER_CERT_PATH") != "" {
			env = append(env, "DOCKER_TLS_VERIFY=1") // as package docker does
		}
	}
	tail := &lastLines{w: out}
	return run(ctx, ref, []string{"bash", "docker"}, env, tail, tail)
}

// Files runs the recipe of ref without an engine. It writes the files of the image to out, as a tar
// file, and the output of the build to log. What it wrote is complete only if it returns no error.
//
// It needs mmdebstrap, or busybox for sandboxd/busybox, or tar for sandboxd/empty; its errors say
// what is missing. It returns ErrUnknown as Config does.
func Files(ctx context.Context, ref string, out, log io.Writer) error {
	if _, err := Config(ref); err != nil {
		return err
	}
	return run(ctx, ref, []string{"bash"}, nil, out, &lastLines{w: log}, "--tar")
}

// Config returns what an image that Files makes says of its command and environment. It returns
// ErrUnknown for other images.
func Config(ref string) (v1.ImageConfig, error) {
	name, err := recipe(ref)
	if err != nil {
		return v1.ImageConfig{}, err
	}
	config, ok := configs[name]
	if !ok {
		return config, fmt.Errorf("image %s: %w that works without Docker", ref, ErrUnknown)
	}
	return config, nil
}

// configs are what images say of their command and environment. Their build scripts have the same
// for an engine.
var configs = map[string]v1.ImageConfig{
	"base": debian, "python": debian, "python-full": debian,
	"busybox": {Env: []string{"PATH=/bin"}, Cmd: []string{"sh"}},
	"empty":   {},
}

var debian = v1.ImageConfig{
	Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8"},
	Cmd: []string{"bash"}}

// run runs the recipe of ref with arguments. The last lines of said are in its error.
func run(ctx context.Context, ref string, tools, env []string, out io.Writer, said *lastLines,
	args ...string) error {
	name, err := recipe(ref)
	if err != nil {
		return err
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf(
				"building image %s: the %s command is missing; install it, or use an image that "+
					"can be pulled", ref, tool)
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

	cmd := exec.CommandContext(ctx, "bash", append([]string{filepath.Join(dir, name, "build")},
		args...)...)
	cmd.Dir = dir
	if env != nil {
		cmd.Env = append(os.Environ(), env...)
	}
	cmd.Stdout, cmd.Stderr = out, said
	// Signal the whole group at once: bash waits for the program that it runs before it obeys. Do
	// not kill it: mmdebstrap has mounts to undo.
	signals.EndTogether(cmd, syscall.SIGTERM)
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("building image %s: %w", ref, context.Cause(ctx))
		}
		return fmt.Errorf("building image %s: %w: %s", ref, err, said)
	}
	return nil
}

// Has reports whether Build can make ref.
func Has(ref string) bool {
	_, err := recipe(ref)
	return err == nil
}

// recipe returns the folder of the recipe for ref: sandboxd/NAME without a tag, with latest, or
// with the tag of the current recipe. Its error wraps ErrUnknown.
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
		return "", fmt.Errorf("image %s: %w: this version makes sandboxd/%s:latest", ref,
			ErrUnknown, name)
	}
	return name, nil
}

// baseRecipe lists the files whose checksum names the base image, in the order in which
// base/build reads them.
var baseRecipe = []string{"base/build", "base/Dockerfile", "base/packages", "base/dpkg.cfg",
	"base/pip.conf"}

// checksum returns the SHA-256 of the concatenated recipe files, in hexadecimal.
func checksum(names ...string) string {
	sum := sha256.New()
	for _, name := range names {
		data, err := recipes.ReadFile(name)
		if err != nil {
			// All files are embedded; a test reads each.
			panic(err)
		}
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// extract writes all recipes to dir: some use the image of another one.
func extract(dir string) error {
	return os.CopyFS(dir, recipes)
}

// lastLines passes text on to w and keeps its last lines for an error message.
type lastLines struct {
	w   io.Writer
	end []byte
}

// Write ignores errors of w: a reader that has gone does not break the build.
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
