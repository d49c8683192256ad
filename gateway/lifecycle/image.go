package lifecycle

import (
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

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/hostdir"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Build names a Dockerfile on the daemon's machine.
type Build struct {
	// Dir is a directory of Options.Dirs. With it Dockerfile and Context are paths in it that do
	// not leave it, nor does a link that they go through; empty they are "Dockerfile" and Dir
	// itself. Without it they are absolute: Dockerfile names the file, or a directory that has one
	// of that name, and Context is by default where it lies.
	Dir        string
	Dockerfile string
	Context    string
	Args       []string // K=V
	Target     string   // stage that is the image; empty is the last
}

// making is what the image of a sandbox is to be made by. The zero value is an image that there is.
type making struct {
	build *Build
	setup []string
	uid   string // who owns the directory that it begins in, which decides who sets up
}

const (
	maxDockerfile = 1 << 20
	maxSetup      = 64 // commands
	maxSetupBytes = 64 << 10

	lastLines  = 12 // of a set-up, in its error
	maxOutput  = 1500
	maxSetLine = 4 << 10

	carriedWithin = 5 * time.Second
)

// planMaking checks what is to be made before anything is.
func (o *Options) planMaking(owner string, spec NewSpec) (making, error) {
	m := making{build: spec.Build, setup: spec.Setup}
	size := 0
	for _, command := range spec.Setup {
		size += len(command)
	}
	switch {
	case spec.Host.URI != "" && (spec.Build != nil || len(spec.Setup) > 0):
		return m, wire.Errorf(wire.CodeUsage, "a machine that answers SSH is taken as it is: nothing is built for it or set up in it")
	case len(spec.Setup) > maxSetup || size > maxSetupBytes:
		return m, wire.Errorf(wire.CodeUsage, "the set-up is more than %d commands, or longer than %d bytes", maxSetup, maxSetupBytes)
	case spec.Build != nil && spec.Image != "":
		return m, wire.Errorf(wire.CodeUsage, "a sandbox is made of an image or of a Dockerfile, not of both")
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
		return m, &wire.Error{Code: wire.CodeDenied, Message: "building images of directories of the daemon's machine is for the daemon's own user",
			Hint: "name an image that is there: --image"}
	}
	for _, kv := range spec.Build.Args {
		if key, _, ok := strings.Cut(kv, "="); !ok || key == "" || len(kv) > maxEnvBytes || strings.ContainsAny(kv, "\x00\n") {
			return m, wire.Errorf(wire.CodeUsage, "build argument %q is not K=V of at most %d bytes in one line", oneLine(kv, 64), maxEnvBytes)
		}
	}
	src, err := o.openBuild(spec.Build)
	if err != nil {
		return m, err
	}
	return m, src.context.Close()
}

// sayMade is what the image of a spec is made of, for a person; empty for one that there is.
func (s NewSpec) sayMade() string {
	var said []string
	if sb := s.Build; sb != nil {
		file := sb.Dockerfile
		if sb.Dir != "" {
			file = filepath.Join(sb.Dir, orDockerfile(file))
		}
		said = append(said, file)
	}
	if len(s.Setup) > 0 {
		said = append(said, "set up once by "+strings.Join(s.Setup, "; "))
	}
	return oneLine(strings.Join(said, ", "), 400)
}

func orDockerfile(file string) string {
	if file == "" {
		return "Dockerfile"
	}
	return file
}

// source is what a build reads. Whoever opened it closes context.
type source struct {
	context *os.Root
	text    []byte
	name    string
}

// openBuild opens what sb names. It is looked at when it is asked for and again when it is used: it
// may have changed.
func (o *Options) openBuild(sb *Build) (source, error) {
	dir, file, below := sb.Dir, orDockerfile(sb.Dockerfile), sb.Context
	if dir == "" {
		below = ""
		if sb.Context != "" {
			rel, err := filepath.Rel(sb.Context, file)
			if err != nil {
				return source{}, wire.Errorf(wire.CodeUsage, "dockerfile %q and context %q are not both absolute", oneLine(file, 200), oneLine(sb.Context, 200))
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
		return source{}, wire.Errorf(wire.CodeUsage, "%s in %s: %s", oneLine(what, 200), oneLine(at.Path, 200), firstLine(err))
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

// makeImage builds the image of a sandbox whose creation is under way, and writes it down.
func (c *creation) makeImage(ctx context.Context, be sandbox.Backend, progress func(string)) error {
	if c.making.build == nil {
		return nil
	}
	builder, ok := be.(sandbox.Imager)
	if !ok {
		return c.Reach(fmt.Errorf("dockerfile: %w", sandbox.ErrUnsupported))
	}
	src, err := c.reg.options.openBuild(c.making.build)
	if err != nil {
		return err
	}
	defer src.context.Close()
	spec := c.get().Spec
	image, err := builder.Build(ctx, sandbox.BuildSpec{Owner: spec.Owner, Dockerfile: src.text, Name: src.name, Context: src.context,
		Args: c.making.build.Args, Target: c.making.build.Target, Limits: spec.Limits, MinFree: c.reg.options.MinFree, Isolation: spec.Isolation, Network: spec.Network, Progress: progress,
		Carrier: func(ctx context.Context, image string) (sandbox.Instance, func() error, error) {
			return c.carrier(ctx, be, image)
		}})
	if err != nil {
		return c.makingError(ctx, "build", err)
	}
	// How large it would be nobody knew.
	if err := c.reg.accounts.withKept(ctx, spec.Owner, image, func(kept int64) error { return c.reg.accounts.imageFits(spec.Owner, kept, 0) }); err != nil {
		c.reg.accounts.forget(ctx, spec.Owner, "")
		return err
	}
	return c.become(ctx, func(f *Record) { f.Spec.Image = image })
}

// carrier boots an instance whose network is that of the sandbox which is being made, for a build
// to share. It has that sandbox's ID: whatever ends its creation removes it.
func (c *creation) carrier(ctx context.Context, be sandbox.Backend, image string) (sandbox.Instance, func() error, error) {
	if err := c.reg.notes.write(c.id, c.get()); err != nil {
		return sandbox.Instance{}, nil, stored(err)
	}
	of := c.get().Spec
	inst, err := be.Boot(ctx, sandbox.Spec{ID: of.ID, Name: of.Name, Owner: of.Owner, Image: image, Network: of.Network, Via: sandbox.ViaTUN, Isolation: of.Isolation,
		Entrypoint: sandbox.EntrypointOff})
	if err != nil {
		return inst, nil, err
	}
	inst.Backend = c.get().Instance.Backend
	stop := c.carrying(ctx, inst)
	return inst, func() error {
		stop()
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		return be.Destroy(clean, inst)
	}, nil
}

// carrying carries the connections of an instance until the returned function is called. It returns
// when the first can be made, or when that takes so long that whoever tries should be told.
func (c *creation) carrying(ctx context.Context, inst sandbox.Instance) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.network.carry(ctx, inst) })
	for end := time.Now().Add(carriedWithin); inst.Network.Carried() && !c.network.Up() && time.Now().Before(end) && sleep(ctx, 2*time.Millisecond); {
		continue
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// setupKey is what besides the image decides what a set-up makes.
func (m making) setupKey(s Asked) (string, error) {
	key, err := json.Marshal(map[string]any{"setup": m.setup, "user": s.User, "owner": m.uid, "env": s.Env, "workdir": s.Workdir, "dir": s.Dir,
		"mounts": s.Mounts, "network": s.Network, "allow": s.Allow, "sudo": s.Sudo, "trust": s.Trust, "isolation": s.Isolation, "entrypoint": s.Entrypoint})
	return string(key), err
}

// findSetUp takes the image that an earlier set-up made, if there is one.
func (c *creation) findSetUp(ctx context.Context, be sandbox.Backend, progress func(string)) error {
	if len(c.making.setup) == 0 {
		return nil
	}
	preparer, ok := be.(sandbox.Imager)
	if !ok {
		return c.Reach(fmt.Errorf("setup: %w", sandbox.ErrUnsupported))
	}
	key, err := c.making.setupKey(c.get().Asked)
	if err != nil {
		return err
	}
	spec := c.get().Spec
	spec.Progress = progress
	image, err := preparer.Prepared(ctx, spec, key)
	if err != nil {
		return c.bootError("create", err)
	}
	if image == "" {
		return nil
	}
	c.making.setup = nil
	return c.become(ctx, func(f *Record) { f.Spec.Image = image })
}

// setUp runs the set-up in the sandbox, which nobody else has yet, and keeps what it made.
func (c *creation) setUp(ctx context.Context, be sandbox.Backend, inst sandbox.Instance, progress func(string)) error {
	if len(c.making.setup) == 0 {
		return nil
	}
	key, err := c.making.setupKey(c.get().Asked)
	if err != nil {
		return err
	}
	// From here on a creation that is cut short knows what to remove.
	if err := c.become(ctx, func(f *Record) { f.Instance = inst }); err != nil {
		return err
	}
	if progress == nil {
		progress = func(string) {}
	}
	stop := c.carrying(ctx, inst)
	defer stop()
	for _, command := range c.making.setup {
		progress("setup: " + command)
		if err := c.setUpStep(ctx, inst, command, progress); err != nil {
			return c.makingError(ctx, "setup", err)
		}
	}
	stop()
	progress("keeping what the set-up made")
	whole, done, err := copier{c.Sandbox}.mayKeep(ctx, be)
	if e, ok := errors.AsType[*wire.Error](err); ok {
		progress("the next sandbox is set up again: " + e.Message) // this one is set up all the same
		return nil
	} else if err != nil {
		return copier{c.Sandbox}.reachFiles(fmt.Errorf("setup: %w", err))
	}
	defer done()
	preparer := be.(sandbox.Imager) //nolint:forcetypeassert // findSetUp has asked it
	if _, err := preparer.Prepare(whole, inst, c.get().Spec.Owner, key); errors.Is(err, sandbox.ErrUnsupported) {
		progress("the next sandbox is set up again: " + firstLine(err))
	} else if err != nil {
		return copier{c.Sandbox}.reachFiles(fmt.Errorf("setup: %w", err))
	}
	return nil
}

// setUpStep runs one command, as the user of the sandbox's sessions and with nothing to read.
func (c *creation) setUpStep(ctx context.Context, inst sandbox.Instance, command string, progress func(string)) error {
	conn, err := c.reg.pool.SSH(ctx, inst)
	if err != nil {
		return err
	}
	client := conn.Client()
	defer client.Close()
	said := &lines{each: func(line string) { progress("  " + line) }}
	err = connect.Run(ctx, client, connect.Command{Line: command, Stdout: said, Stderr: said})
	said.end()
	failed := &sandbox.StepError{Step: text.Line(command, 120), Output: strings.Join(said.last, "; ")}
	var exit *connect.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit) && exit.Signal == "":
		failed.Code = exit.Status
	case errors.As(err, &exit):
		failed.Output = "ended by signal " + text.Line(exit.Signal, 20) + ": " + failed.Output
	default:
		return err
	}
	return failed
}

// makingError is an error of a build or a set-up for whoever asked for the sandbox.
func (c *creation) makingError(ctx context.Context, stage string, err error) error {
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errRemoved) {
			return &shown{public: wire.Errorf(wire.CodeLost, "create %s: %v", c.Name(), cause), err: err}
		} else if e, ok := errors.AsType[*wire.Error](cause); ok {
			return &shown{public: &wire.Error{Code: e.Code, Message: fmt.Sprintf("create %s: %s: %s", c.Name(), stage, e.Message), Hint: e.Hint}, err: err}
		}
		return fmt.Errorf("create %s: %w", c.Name(), context.Cause(ctx))
	}
	step, ok := errors.AsType[*sandbox.StepError](err)
	if !ok {
		return c.bootError("create", err)
	}
	e := &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("create %s: %s: %s", c.Name(), stage, oneLine(step.Error(), maxOutput)),
		Hint: "nothing was left behind; correct it and try again"}
	if n := c.get().Spec.Network; n == sandbox.NetworkNone {
		e.Hint += "; it has the network of the sandbox, which is none"
	}
	return &shown{public: e, err: err}
}

// lines cuts what is written to it into lines that may be shown, and remembers the last ones.
type lines struct {
	each func(line string)

	mu   sync.Mutex
	open string   // guarded by mu
	last []string // guarded by mu; read when nobody writes any more
}

// Write is called by the two streams of a command at once.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += string(p)
	for {
		line, rest, ok := strings.Cut(l.open, "\n")
		if !ok && len(l.open) <= maxSetLine {
			return len(p), nil
		}
		l.open = rest
		l.said(line)
	}
}

// end takes the last line for whole.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open != "" {
		l.said(l.open)
		l.open = ""
	}
}

func (l *lines) said(line string) {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:] // of one that counts upwards, as apt's does, what it came to
	line = strings.TrimRight(text.Line(line, maxSetLine), " ")
	if l.last = append(l.last, strings.TrimSpace(line)); len(l.last) > lastLines {
		l.last = l.last[1:]
	}
	l.each(line)
}
