package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/dockerfile"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Build names a Dockerfile on the daemon's machine.
type Build struct {
	// Dir is a directory of Options.Dirs. With it, Dockerfile and Context are paths in it and must
	// not leave it, not even by a symbolic link. Empty, they mean "Dockerfile" and Dir itself.
	// Without Dir both are absolute: Dockerfile names the file or its directory, and Context
	// defaults to that directory.
	Dir        string
	Dockerfile string
	Context    string
	Args       []string // K=V
	Target     string   // stage to build; empty is the last
}

// imageSource is how the image of a sandbox is made. The zero value means an existing image.
type imageSource struct {
	build *Build
	setup []string
	// Owner of the directory that the setup begins in; it decides which user runs the setup.
	uid string
}

const (
	maxDockerfile = 1 << 20
	maxSetup      = 64 // commands
	maxSetupBytes = 64 << 10

	maxOutput = 1500 // characters of a setup's output, in its error

	carriedWithin = 5 * time.Second
)

// planImageSource checks how the image is made, before anything is created.
func (o *Options) planImageSource(owner string, spec NewSpec) (imageSource, error) {
	m := imageSource{build: spec.Build, setup: spec.Setup}
	size := 0
	for _, command := range spec.Setup {
		size += len(command)
	}
	switch {
	case spec.Host.URI != "" && (spec.Build != nil || len(spec.Setup) > 0):
		return m, wire.Errorf(wire.CodeUsage, "host: build and setup are not supported")
	case len(spec.Setup) > maxSetup || size > maxSetupBytes:
		return m, wire.Errorf(wire.CodeUsage,
			"setup: more than %d commands, or longer than %d bytes", maxSetup, maxSetupBytes)
	case spec.Build != nil && spec.Image != "":
		return m, wire.Errorf(wire.CodeUsage, "image and Dockerfile are mutually exclusive")
	}
	if dir := spec.Dir; dir != "" {
		d, err := o.Dirs.Check(dir)
		if err != nil {
			return m, dirError(err)
		}
		m.uid = fmt.Sprintf("%d:%d", d.UID, d.GID)
	}
	if spec.Build == nil {
		return m, nil
	}
	if owner != o.Owner {
		return m, &wire.Error{Code: wire.CodeDenied,
			Message: "build: only the admin may build images from directories of the " +
				"daemon's machine",
			Hint: "name an existing image: --image"}
	}
	for _, kv := range spec.Build.Args {
		if key, _, ok := strings.Cut(kv, "="); !ok || key == "" || len(kv) > maxEnvBytes ||
			strings.ContainsAny(kv, "\x00\n") {
			return m, wire.Errorf(wire.CodeUsage,
				"build argument %q: must be K=V in one line, at most %d bytes", oneLine(kv, 64),
				maxEnvBytes)
		}
	}
	src, err := o.openBuild(spec.Build)
	if err != nil {
		return m, err
	}
	return m, src.context.Close()
}

// imageSourceText returns how the image of a spec is made, for people; empty for an existing image.
func (s NewSpec) imageSourceText() string {
	var said []string
	if sb := s.Build; sb != nil {
		file := sb.Dockerfile
		if sb.Dir != "" {
			file = filepath.Join(sb.Dir, orDockerfile(file))
		}
		said = append(said, file)
	}
	if len(s.Setup) > 0 {
		said = append(said, "setup: "+strings.Join(s.Setup, "; "))
	}
	return oneLine(strings.Join(said, ", "), 400)
}

func orDockerfile(file string) string {
	if file == "" {
		return "Dockerfile"
	}
	return file
}

// source is what a build reads. The caller closes context.
type source struct {
	context *os.Root
	text    []byte
	name    string
}

// openBuild opens the files that sb names. It is called once to check the spec and again for the
// build, because the files may change in between.
func (o *Options) openBuild(sb *Build) (source, error) {
	dir, file, below := sb.Dir, orDockerfile(sb.Dockerfile), sb.Context
	if dir == "" {
		below = ""
		if sb.Context != "" {
			rel, err := filepath.Rel(sb.Context, file)
			if err != nil {
				return source{}, wire.Errorf(wire.CodeUsage,
					"dockerfile %q and context %q: both must be absolute", oneLine(file, 200),
					oneLine(sb.Context, 200))
			}
			dir, file = sb.Context, rel
		} else if info, err := os.Stat(file); err == nil && info.IsDir() {
			dir, file = file, "Dockerfile"
		} else {
			dir, file = filepath.Dir(file), filepath.Base(file)
		}
	}
	root, at, err := o.Dirs.Open(dir)
	if err != nil {
		return source{}, dirError(err)
	}
	s := source{context: root, name: file}
	fail := func(what string, err error) (source, error) {
		s.context.Close()
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
		return source{}, wire.Errorf(wire.CodeUsage, "%s in %s: %s", oneLine(what, 200),
			oneLine(at.Path, 200), firstLine(err))
	}
	if info, err := root.Stat(file); err == nil && info.IsDir() {
		file = filepath.Join(file, "Dockerfile")
		s.name = file
	}
	if s.text, err = hostdir.ReadFile(root, file, maxDockerfile); err != nil {
		return fail(file, err)
	}
	if below == "" || below == "." {
		return s, nil
	}
	sub, err := root.OpenRoot(below)
	if err != nil {
		return fail(below, err)
	}
	s.context = sub
	return s, root.Close()
}

// carrying carries the connections of an instance until stop is called. It returns once the carrier
// is up, at the latest after carriedWithin.
func (c *creation) carrying(ctx context.Context, inst sandbox.Instance) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.network.carry(ctx, inst) })
	for end := time.Now().Add(carriedWithin); inst.Network.Carried() && !c.network.Up() &&
		time.Now().Before(end) && sleep(ctx, 2*time.Millisecond); {
		continue
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// setupKey returns what determines the result of a setup, besides the image.
func (m imageSource) setupKey(s Asked) (string, error) {
	of := map[string]any{"setup": m.setup, "user": s.User, "owner": m.uid,
		"env": s.Env, "workdir": s.Workdir, "dir": s.Dir,
		"mounts": s.Mounts, "network": s.Network, "allow": s.Allow, "sudo": s.Sudo,
		"trust": s.Trust, "isolation": s.Isolation, "entrypoint": s.Entrypoint}
	if s.NoSecrets { // with them, commands may have written into the image what they read
		of["no_secrets"] = true
	}
	key, err := json.Marshal(of)
	return string(key), err
}

// findSetup uses the image of an earlier identical setup, if there is one.
func (c *creation) findSetup(ctx context.Context, be sandbox.Backend, progress func(string)) error {
	if len(c.imageSource.setup) == 0 {
		return nil
	}
	preparer, ok := be.(sandbox.Imager)
	if !ok {
		return c.Reach(ErrNoImages)
	}
	key, err := c.imageSource.setupKey(c.get().Asked)
	if err != nil {
		return err
	}
	spec := c.get().Spec
	spec.Progress = progress
	image, err := preparer.Prepared(ctx, spec, sandbox.Layer{Key: key})
	if err != nil {
		return c.bootError("create", err)
	}
	if image == "" {
		return nil
	}
	c.imageSource.setup = nil
	return c.transition(ctx, func(f *Record) { f.Spec.Image = image })
}

// runSetup runs the setup in the new sandbox, which nobody else can find yet, and saves the result
// as an image.
func (c *creation) runSetup(ctx context.Context, be sandbox.Backend, inst sandbox.Instance,
	progress func(string)) error {
	if len(c.imageSource.setup) == 0 {
		return nil
	}
	key, err := c.imageSource.setupKey(c.get().Asked)
	if err != nil {
		return err
	}
	// From here on an aborted creation knows the instance to remove.
	if err := c.transition(ctx, func(f *Record) { f.Instance = inst }); err != nil {
		return err
	}
	if progress == nil {
		progress = func(string) {}
	}
	stop := c.carrying(ctx, inst)
	defer stop()
	for _, command := range c.imageSource.setup {
		progress("setup: " + command)
		if err := c.setupStep(ctx, inst, command, progress); err != nil {
			return c.imageError(ctx, "setup", err)
		}
	}
	stop()
	progress("saving the result of the setup")
	whole, done, err := copier{c.Sandbox}.reserveCopy(ctx, be)
	if e, ok := errors.AsType[*wire.Error](err); ok {
		// This sandbox is set up nevertheless.
		progress("setup result not saved, the next sandbox repeats the setup: " + e.Message)
		return nil
	} else if err != nil {
		return copier{c.Sandbox}.reachFiles(fmt.Errorf("setup: %w", err))
	}
	defer done()
	preparer := be.(sandbox.Imager) //nolint:forcetypeassert // findSetup has asked it
	if _, err := preparer.Prepare(whole, inst, c.get().Spec.Owner,
		sandbox.Layer{Key: key}); errors.Is(err,
		sandbox.ErrUnsupported) {
		progress("setup result not saved, the next sandbox repeats the setup: " + firstLine(err))
	} else if err != nil {
		return copier{c.Sandbox}.reachFiles(fmt.Errorf("setup: %w", err))
	}
	return nil
}

// setupStep runs one command as the user of the sandbox's sessions, with empty standard input.
func (c *creation) setupStep(ctx context.Context, inst sandbox.Instance, command string,
	progress func(string)) error {
	conn, err := c.reg.pool.SSH(ctx, inst)
	if err != nil {
		return err
	}
	return dockerfile.Run(ctx, conn, text.Line(command, 120), connect.Command{Line: command},
		progress)
}

// imageError converts an error of a build or a setup for the client that asked for the sandbox.
func (c *creation) imageError(ctx context.Context, stage string, err error) error {
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errRemoved) {
			return &publicError{public: wire.Errorf(wire.CodeLost, "create %s: %v", c.Name(),
				cause), err: err}
		} else if e, ok := errors.AsType[*wire.Error](cause); ok {
			return &publicError{public: &wire.Error{Code: e.Code,
				Message: fmt.Sprintf("create %s: %s: %s", c.Name(), stage, e.Message),
				Hint:    e.Hint}, err: err}
		}
		return fmt.Errorf("create %s: %w", c.Name(), context.Cause(ctx))
	}
	step, ok := errors.AsType[*sandbox.StepError](err)
	if !ok {
		return c.bootError("create", err)
	}
	e := &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("create %s: %s: %s", c.Name(),
		stage, oneLine(step.Error(), maxOutput)),
		Hint: cmp.Or(sandbox.HintOf(err), "nothing was left behind; fix it and try again")}
	if n := c.get().Spec.Network; n == sandbox.NetworkNone {
		e.Hint += "; it uses the sandbox's network, which is none"
	}
	return &publicError{public: e, err: err}
}
