package agentrun

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

//go:embed find.py
var findImports string

const (
	installWithin = 2 * time.Minute // for each package
	installAtMost = 10 * time.Minute
	maxImports    = 32
)

// packageOf maps module names to package names where they differ.
var packageOf = map[string]string{"attr": "attrs", "bs4": "beautifulsoup4",
	"cv2": "opencv-python-headless", "dateutil": "python-dateutil", "docx": "python-docx",
	"dotenv": "python-dotenv", "Crypto": "pycryptodome", "fitz": "pymupdf", "git": "gitpython",
	"jwt": "pyjwt", "PIL": "pillow", "pptx": "python-pptx",
	"serial": "pyserial", "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml"}

// plain are common modules of the standard library. Code that imports only these needs no check by
// Python.
var plain = strings.Fields(
	"__future__ abc array ast asyncio base64 bisect calendar cmath collections concurrent " +
		"contextlib copy csv dataclasses datetime " +
		"decimal difflib enum fractions functools glob hashlib heapq html io itertools json " +
		"logging " +
		"math operator os pathlib pickle platform pprint queue random re " +
		"secrets shutil signal socket sqlite3 statistics string struct subprocess sys tempfile " +
		"textwrap threading time timeit traceback types typing unicodedata " +
		"urllib uuid xml zipfile zlib")

var (
	importing = regexp.MustCompile(`\bimport\b`)
	simple    = regexp.MustCompile(
		`^\s*(?:import\s+([\w.]+(?:\s*,\s*[\w.]+)*)|from\s+([\w.]+)\s+import\s+[\w\s,*]+)\s*(?:#.*)?$`)
	names    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`)
	packages = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$`) // PEP 508
	notFound = regexp.MustCompile(`No matching distribution found for ([A-Za-z0-9._-]+)`)
)

// IsPackage reports whether name is a valid package name.
func IsPackage(name string) bool { return packages.MatchString(name) }

// sameName compares package names as pip does (PEP 503).
func sameName(a, b string) bool { return normal(a) == normal(b) }

func normal(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(name))
}

// mayImport reports whether code may import modules that are not in plain. It returns false only if
// each line with an import has the simplest form.
func mayImport(code string) bool {
	for line := range strings.Lines(code) {
		if !importing.MatchString(line) {
			continue
		}
		m := simple.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			return true
		}
		for _, name := range strings.Split(m[1]+m[2], ",") {
			name, _, _ = strings.Cut(strings.TrimSpace(name), ".")
			if !slices.Contains(plain, name) {
				return true
			}
		}
	}
	return false
}

// missing asks Python which imported modules are not installed. For code that Python cannot parse,
// it returns none: the error appears when the code runs.
func (b *conn) missing(ctx context.Context, code string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.r.o.Timeout)
	defer cancel()
	text, err := b.ask(ctx, "python3 -I -c "+text.Quote(findImports), code)
	if err != nil {
		return nil, err
	}
	all := strings.Fields(text)
	for _, name := range all {
		if !names.MatchString(name) {
			return nil, wire.Errorf(wire.CodeUsage, "module %.100q: not a valid package name", name)
		}
	}
	if len(all) > maxImports {
		return nil, wire.Errorf(wire.CodeUsage,
			"too many missing modules: the code imports %d, the limit is %d", len(all), maxImports)
	}
	return all, nil
}

// install returns an image with packages for the modules. If that fails because of the code, it
// returns a Result.
func (r *Runner) install(ctx context.Context, p gateway.Principal, modules []string) (image string,
	no *Result, err error) {
	set := make(map[string]string) // module, by package
	for _, m := range modules {
		name := m
		if known := packageOf[m]; known != "" {
			name = known
		}
		if !r.o.allowed(m, name) {
			return "", &Result{Output: "Dependency: " + m + " is not in the whitelist.",
				Status: Refused}, nil
		}
		set[name] = m
	}
	for _, name := range r.o.CachedDependencies { // keep them in the new image
		if _, ok := set[name]; !ok {
			set[name] = name
		}
	}
	wanted := slices.Sorted(maps.Keys(set))
	image, err = r.prepare(ctx, p, wanted)
	var failed *wire.Error
	if errors.As(err, &failed) && ctx.Err() == nil && failed.Code == wire.CodeUnavailable {
		which := strings.Join(modules, ", ")
		if m := notFound.FindStringSubmatch(failed.Message); m != nil && set[m[1]] != "" {
			which = set[m[1]]
		}
		why := failed.Message
		if _, said, ok := strings.Cut(why, ": exit code "); ok { // pip's output
			why = strings.ReplaceAll(said[strings.IndexByte(said, ':')+1:], "; ", "\n")
		}
		return "", &Result{Output: "Failed to install dependency " + which + "\n" +
			strings.TrimSpace(why) + "\n", Status: Failed}, nil
	}
	return image, nil, err
}

// prepare builds the image with these packages for p, or finds an existing one.
func (r *Runner) prepare(ctx context.Context, p gateway.Principal, wanted []string) (string,
	error) {
	ctx, cancel := context.WithTimeoutCause(
		ctx, min(installAtMost, time.Duration(len(wanted))*installWithin),
		wire.Errorf(wire.CodeUnavailable, "installation of %s timed out",
			strings.Join(wanted, ", ")))
	defer cancel()
	// The limits of code do not apply: pip needs more memory than many programs. Its network is
	// limited to InstallFrom.
	spec := lifecycle.NewSpec{Image: r.o.Image, Network: sandbox.NetworkAllowlist,
		Allow: r.o.InstallFrom, Entrypoint: sandbox.EntrypointOff,
		TTL: installAtMost, DeleteAfter: removeAfter,
		Setup: []string{"PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip " +
			"install --quiet --no-cache-dir --no-input --disable-pip-version-check " +
			"--prefer-binary --retries 2 --timeout 30 " + strings.Join(wanted, " ")}}
	image, err := r.o.Hub.Prepare(ctx, p, spec, nil)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return image, err
}

// cached returns the image of p's calls: the configured one, with the cached dependencies.
func (r *Runner) cached(ctx context.Context, p gateway.Principal) (string, error) {
	if len(r.o.CachedDependencies) == 0 {
		return r.o.Image, nil
	}
	r.mu.Lock()
	image := r.images[p.Name]
	r.mu.Unlock()
	if image != "" {
		return image, nil
	}
	wanted := slices.Clone(r.o.CachedDependencies)
	slices.Sort(wanted)
	image, err := r.prepare(ctx, p, slices.Compact(wanted))
	if err != nil {
		return "", fmt.Errorf("cached dependencies: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[p.Name] = image
	return image, nil
}

// uncache makes the next call look up the image again: it may have been removed.
func (r *Runner) uncache(p gateway.Principal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.images, p.Name)
}
