// Package workspace reads a directory's description of its sandbox: .sandboxd.yaml, or the plain
// fields of .devcontainer/devcontainer.json. Anyone who can write to the directory controls these
// files: they are bounded, parsed strictly, and cannot open access that the user did not request.
// It makes no sandbox.
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

// Workspace is a directory's description. Zero fields were not set.
type Workspace struct {
	File string // file that was read; empty if there is none

	Image      string
	Build      *Build   // alternative to Image
	Setup      []string // shell commands to run once in a new sandbox
	Network    sandbox.Network
	Allow      []string // names, as in NewSpec.Allow
	Limits     sandbox.Limits
	TTL        time.Duration
	User       string
	Sudo       bool
	Env        []string // K=V, sorted
	Entrypoint sandbox.Entrypoint
	Workdir    string // absolute

	// Recipe is a checksum of the file, to notice changes. Empty without a file.
	Recipe string
	// Notes are ignored parts of the file, for users.
	Notes []string
}

// Build is a Dockerfile in the directory. Its paths are in the directory, and relative to it.
type Build struct {
	Dockerfile string
	Context    string
	Args       []string // K=V, sorted
	Target     string
}

// Read reads the files in root, which is the directory at dir. An invalid file is a *wire.Error of
// code usage that names the line.
func Read(root *os.Root, dir string) (Workspace, error) {
	for _, f := range []struct {
		name  string
		parse func(name string, text []byte, dir string) (Workspace, error)
	}{{File, parseYAML}, {devcontainer, parseDevcontainer},
		{".devcontainer.json", parseDevcontainer}} {
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
		// The Dockerfile counts as part of the description. The build checks that it exists.
		text, err = hostdir.ReadFile(root, w.Build.Dockerfile, maxDockerfile)
		if err == nil {
			sum := sha256.Sum256(text)
			w.Recipe += ":" + hex.EncodeToString(sum[:8])
		}
		return w, nil
	}
	return Workspace{}, nil
}

// check rejects settings that a file in a directory may not have.
func (w Workspace) check() error {
	if w.Network == sandbox.NetworkBridge {
		return &wire.Error{Code: wire.CodeDenied,
			Message: w.File +
				": network bridge gives access to this machine's services and the local network; " +
				"a file in a directory may not set it",
			Hint: "use it explicitly: sandboxd new NAME --mount DIR --network bridge"}
	}
	if w.Build != nil {
		if w.Image != "" {
			return wrong("%s: image and Dockerfile are mutually exclusive", w.File)
		}
		for _, path := range []string{w.Build.Dockerfile, w.Build.Context} {
			if !filepath.IsLocal(path) {
				return wrong("%s: %q is not in the directory", w.File, path)
			}
		}
	}
	if w.Workdir != "" && (!path.IsAbs(w.Workdir) || path.Clean(w.Workdir) != w.Workdir) {
		return wrong("%s: %q is not a clean absolute path", w.File, w.Workdir)
	}
	return nil
}

// environment returns m as variables.
func environment(m map[string]string) []string {
	var env []string
	for k, v := range m {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

// Name returns the name of a directory's sandbox: from its last part, and unique to the directory.
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
	return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf(format, args...),
		Hint: "correct the file, or use a sandbox without the directory: -n NAME"}
}
