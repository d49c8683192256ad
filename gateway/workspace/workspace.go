// Package workspace reads what a directory says of the sandbox that is to be its own: .sandboxd.yaml, or the plain fields of
// .devcontainer/devcontainer.json. The files are whoever's who wrote the directory: they are bounded, read strictly, and
// open nothing that nobody asked for. It makes no sandbox.
package workspace

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// File is the name of our own file in a directory.
const File = ".sandboxd.yaml"

const (
	devcontainer  = ".devcontainer/devcontainer.json"
	maxFile       = 64 << 10
	maxDockerfile = 1 << 20
)

// Workspace is what a directory says. Zero fields were not said.
type Workspace struct {
	File string // which file said it; empty when there is none

	Image      string
	Build      *Build   // of Image it is one or the other
	Setup      []string // commands of a shell, to be run once in a new sandbox
	Network    sandbox.Network
	Allow      []string // names, as of NewSpec.Allow
	Limits     sandbox.Limits
	TTL        time.Duration
	User       string
	Sudo       bool
	Env        []string // K=V, sorted
	Entrypoint sandbox.Entrypoint
	Workdir    string // absolute

	// Recipe is a checksum of the file: another one says something else. Empty without a file.
	Recipe string
	// Notes are what the file says that is not done, for a person.
	Notes []string
}

// Build is a Dockerfile in the directory. Its paths are in it, and relative to it.
type Build struct {
	Dockerfile string
	Context    string
	Args       []string // K=V, sorted
	Target     string
}

// Read reads the files in root, which is the directory at dir. A file that is wrong is a *wire.Error of code usage that names
// the line.
func Read(root *os.Root, dir string) (Workspace, error) {
	for _, f := range []struct {
		name  string
		parse func(name string, text []byte, dir string) (Workspace, error)
	}{{File, parseYAML}, {devcontainer, parseDevcontainer}, {".devcontainer.json", parseDevcontainer}} {
		text, err := hostdir.ReadFile(root, f.name, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Workspace{}, wrong("%s in %s: %v", f.name, dir, err)
		}
		w, err := f.parse(f.name, text, dir)
		if err != nil {
			return Workspace{}, err
		}
		sum := sha256.Sum256(text)
		w.File, w.Recipe = f.name, f.name+":"+hex.EncodeToString(sum[:8])
		if err := w.check(); err != nil || w.Build == nil {
			return w, err
		}
		// What the Dockerfile says is what the directory says. Whether there is one is found out by who builds.
		text, err = hostdir.ReadFile(root, w.Build.Dockerfile, maxDockerfile)
		if err == nil {
			sum := sha256.Sum256(text)
			w.Recipe += ":" + hex.EncodeToString(sum[:8])
		}
		return w, nil
	}
	return Workspace{}, nil
}

// check refuses what a file in a directory may not ask for.
func (w Workspace) check() error {
	if w.Network == sandbox.NetworkBridge {
		return &wire.Error{Code: wire.CodeDenied, Message: w.File + ": network bridge opens this machine's services and the local network; a file in a directory may not ask for that",
			Hint: "say it yourself: sandboxd new NAME --mount DIR --network bridge"}
	}
	if w.Build != nil {
		if w.Image != "" {
			return wrong("%s: it says both an image and a Dockerfile", w.File)
		}
		for _, path := range []string{w.Build.Dockerfile, w.Build.Context} {
			if !filepath.IsLocal(path) {
				return wrong("%s: %q is not in the directory", w.File, path)
			}
		}
	}
	if w.Workdir != "" && (!path.IsAbs(w.Workdir) || path.Clean(w.Workdir) != w.Workdir) {
		return wrong("%s: %q is not a plain absolute path", w.File, w.Workdir)
	}
	return nil
}

// environment is m as variables.
func environment(m map[string]string) []string {
	var env []string
	for k, v := range m {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

// Name is what the sandbox of a directory is called: after its last part, and so that no other directory's has that name.
func Name(dir string) string {
	var base strings.Builder
	for _, r := range strings.ToLower(path.Base(dir)) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			base.WriteRune(r)
		case base.Len() > 0 && !strings.HasSuffix(base.String(), "-"):
			base.WriteByte('-')
		}
	}
	name := strings.Trim(base.String()[:min(base.Len(), 40)], "-")
	if name == "" {
		name = "dir"
	}
	sum := sha256.Sum256([]byte(dir))
	return name + "-" + hex.EncodeToString(sum[:4])
}

func wrong(format string, args ...any) *wire.Error {
	return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf(format, args...), Hint: "correct the file, or name a sandbox that does not read it: -n NAME"}
}
