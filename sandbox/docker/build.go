package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

const (
	stageBuild = "build"

	maxDockerfile = 1 << 20
	lastLines     = 12 // of a step, in its error
)

// builder builds images from Dockerfiles with the engine's own builder.
type builder struct {
	engine    *engine
	instances *instances
	images    *images
	meter     *meter // of the files that a step writes

	sweeping sync.Mutex // held during calls of the engine
	builds   bool       // guarded by sweeping; this daemon has begun a build
}

// Build makes an image with the engine's own builder. See sandbox.Imager.
func (bd *builder) Build(ctx context.Context, s sandbox.BuildSpec) (string, error) {
	ref, err := bd.build(ctx, s)
	if err != nil {
		return "", &sandbox.BootError{Stage: stageBuild, Hint: sandbox.HintOf(err), Err: err}
	}
	return ref, nil
}

func (bd *builder) build(ctx context.Context, s sandbox.BuildSpec) (string, error) {
	if s.Progress == nil {
		s.Progress = func(string) {}
	}
	if len(s.Dockerfile) > maxDockerfile {
		return "", fmt.Errorf("%s is longer than %d bytes", s.Name, maxDockerfile)
	}
	if err := guestconfig.CheckEnv(s.Args); err != nil {
		return "", fmt.Errorf("arguments: %w", err)
	}
	f, err := bd.engine.facts(ctx)
	if err != nil {
		return "", err
	}
	if err := f.mayBuild(); err != nil {
		return "", err
	}
	bd.beginBuild(ctx)
	// The engine reuses steps by their text. The label keeps it from reusing a step that ran with
	// another network, such as one with access to the host's services.
	labels := bd.engine.made() + " " + labelNetwork + "=" + string(s.Network)
	d, err := pinDockerfile(s.Dockerfile, s.Name, f.arch, labels, s.Args,
		func(ref string) (image, error) {
			return bd.images.baseImage(ctx, s.Owner, ref, s.Progress)
		})
	if err != nil {
		return "", err
	}
	if d.runs && s.Isolation != "" && s.Isolation != f.defaultRuntime {
		return "",
			sandbox.Hint(fmt.Errorf(
				"isolation %q: %w: the engine runs the steps of %s with its default runtime, %s",
				s.Isolation, sandbox.ErrUnsupported, s.Name, f.defaultRuntime),
				"use an image that is already built, and move the RUN steps to setup:")
	}
	files, err := openContext(s.Context)
	if err != nil {
		return "", err
	}
	sum, err := files.pack(ctx, io.Discard)
	if err != nil {
		return "", err
	}
	args := strings.Join(slices.Sorted(slices.Values(s.Args)), "\x00")
	ref := bd.images.names.Made(machine.BuildPrefix, s.Owner, "1", d.out.String(), args, s.Target,
		sum)
	// One build at a time: a second one reuses the result of the first, and one that fails cannot
	// remove the other's name.
	unlock, err := bd.instances.Lock(ctx, ref)
	if err != nil {
		return "", err
	}
	defer unlock()
	switch had, err := bd.engine.inspectImage(ctx, ref); {
	case err == nil:
		s.Progress("found the image of " + s.Name)
		bd.engine.used(ctx, ref)
		return ref, nil
	case !errors.Is(err, sandbox.ErrNoImage):
		return "", fmt.Errorf("image %s: %w", had.id, err)
	}
	bd.images.trimMade(ctx)
	options, release, err := bd.buildOptions(ctx, s, d, f, ref)
	if err != nil {
		return "", err
	}
	defer func() {
		if left := release(); left != nil {
			bd.engine.log.Warn("the network carrier of a build is not removed yet", "err", left)
		}
	}()
	s.Progress("building the image of " + s.Name)
	bd.images.building.RLock()
	defer bd.images.building.RUnlock()
	if err := bd.runBuild(ctx, d, files, sum, options, s); err != nil {
		// An abandoned request may still tag it.
		bd.engine.removeImage(context.WithoutCancel(ctx), ref)
		return "", err
	}
	if _, err := bd.engine.inspectImage(ctx, ref); err != nil {
		return "", err
	}
	return ref, nil
}

// buildOptions returns the engine's options. Steps have the limits of a sandbox, as far as the
// builder supports them; enforcer adds the others.
func (bd *builder) buildOptions(ctx context.Context, s sandbox.BuildSpec, d *dockerfile, f facts,
	ref string) (
	o client.ImageBuildOptions, release func() error, err error) {
	l, err := fit(sandbox.Spec{Limits: s.Limits}, f, bd.engine.cache.defaultNoFile(f))
	if err != nil {
		return o, nil, err
	}
	const period = 100_000
	o = client.ImageBuildOptions{
		Version: build.BuilderV1, Tags: []string{ref}, Dockerfile: sentDockerfile, Target: s.Target,
		Remove: true, ForceRemove: true, NetworkMode: string(sandbox.NetworkNone),
		Memory: l.Memory, MemorySwap: l.Memory, ShmSize: l.Shm,
		CPUPeriod: period, CPUQuota: int64(l.CPUs * period),
		Ulimits: []*container.Ulimit{{Name: "core"}}, BuildArgs: make(map[string]*string),
	}
	if l.NoFile > 0 {
		o.Ulimits = append(o.Ulimits, &container.Ulimit{Name: "nofile", Soft: l.NoFile,
			Hard: l.NoFile})
	}
	for _, kv := range s.Args {
		key, value, _ := strings.Cut(kv, "=")
		o.BuildArgs[key] = &value
	}
	nothing := func() error { return nil }
	switch {
	case s.Network == sandbox.NetworkBridge:
		o.NetworkMode = string(sandbox.NetworkBridge)
	case s.Network.Carried() && d.runs && len(d.bases) > 0:
		inst, done, err := s.Carrier(ctx, d.bases[0])
		if errors.Is(err, sandbox.ErrUnsupported) { // a sandbox could fall back to the proxy
			err = sandbox.Hint(err, "RUN steps need the network device: load it (modprobe tun), "+
				"use --network none, or use an image that is already built (--image)")
		}
		if err != nil {
			return o, nil, fmt.Errorf("network of the build: %w", err)
		}
		o.NetworkMode = "container:" + inst.Ref
		return o, done, nil
	}
	return o, nothing, nil
}

// runBuild sends the build context and follows the build to its end.
func (bd *builder) runBuild(ctx context.Context, d *dockerfile, files *buildContext, sum string,
	o client.ImageBuildOptions, s sandbox.BuildSpec) error {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &enforcer{bd: bd, limits: s.Limits.Or(sandbox.DefaultLimits), room: s.MinFree,
		base: d.sizes, end: cancel}
	var held sync.WaitGroup
	defer held.Wait()
	defer cancel(nil)
	held.Go(func() { h.watchRoom(ctx) })
	step := &buildStep{steps: d.steps, progress: s.Progress,
		started: func(id string) { held.Go(func() { h.step(ctx, id) }) }}
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := files.send(ctx, w, d.out.Bytes(), sum)
		w.CloseWithError(err)
		sent <- err
	}()
	followed := bd.followBuild(ctx, step, r, o)
	r.CloseWithError(errors.New("the engine stopped reading"))
	if err := <-sent; err != nil && sandbox.HintOf(err) != "" {
		return err // why the engine ended the build
	}
	return followed
}

func (bd *builder) followBuild(ctx context.Context, step *buildStep, archive io.Reader,
	o client.ImageBuildOptions) error {
	fail := func(err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isUnreachable(err):
			return sandbox.Hint(fmt.Errorf("%w: %w", sandbox.ErrEngine, err), unreachableHint(err))
		}
		return errors.New(printable(err.Error()))
	}
	got, err := bd.engine.api.ImageBuild(ctx, archive, o)
	if err != nil {
		return fail(err)
	}
	defer got.Body.Close()
	for stream := json.NewDecoder(got.Body); ; {
		var m jsonstream.Message
		switch err := stream.Decode(&m); {
		case errors.Is(err, io.EOF) && ctx.Err() == nil:
			return nil
		case err != nil:
			return fail(err)
		case m.Error != nil && ctx.Err() == nil:
			return step.failed(m.Error)
		}
		step.read(m.Stream)
	}
}

// buildStep parses the builder's output. A program in a step can imitate it, which affects messages
// only.
type buildStep struct {
	steps    []string
	progress func(string)
	// Called before a container is created, with the first twelve digits of its ID.
	started func(id string)

	at    int    // number of the step, from 1; 0 before the first
	shown int    // the same among the steps of the original
	line  string // an unfinished line
	last  []string
}

// visible returns the number of steps of the original Dockerfile.
func visible(steps []string) (n int) {
	for _, step := range steps {
		if !strings.HasSuffix(step, hiddenStep) {
			n++
		}
	}
	return n
}

var (
	stepLine  = regexp.MustCompile(`^Step (\d+)/(\d+) : `)
	stepNoise = regexp.MustCompile(`^( ---> |Successfully (built|tagged) )`)
	// Matches also at the end of an unfinished line, and the colors that the builder adds to
	// standard error.
	stepExtra = regexp.MustCompile(`Removing intermediate container [0-9a-f]{12}$|\x1b\[[0-9;]*m`)
)

func (s *buildStep) read(text string) {
	s.line += text
	for {
		line, rest, ok := strings.Cut(s.line, "\n")
		if !ok {
			break
		}
		s.line = rest
		s.ended(line)
	}
	if len(s.line) > 4<<10 { // split lines that do not end
		s.ended(s.line)
		s.line = ""
	}
}

func (s *buildStep) ended(line string) {
	line = strings.TrimRight(stepExtra.ReplaceAllString(line, ""), " \r")
	if said := stepLine.FindStringSubmatch(line); said != nil {
		if n, err := strconv.Atoi(said[1]); err == nil && n == s.at+1 && n <= len(s.steps) {
			s.at, s.last = n, nil
			if step := s.steps[n-1]; !strings.HasSuffix(step, hiddenStep) {
				s.shown++
				s.progress(fmt.Sprintf("[%d/%d] %s", s.shown, visible(s.steps), step))
			}
			return
		}
	}
	if said := running.FindStringSubmatch(line); said != nil && s.at > 0 {
		s.started(said[1])
	}
	if line == "" || stepNoise.MatchString(line) {
		return
	}
	// The last state of a progress line, such as apt's.
	line = line[strings.LastIndexByte(line, '\r')+1:]
	line = printable(strings.ReplaceAll(line, "\t", "  "))
	if s.last = append(s.last, strings.TrimSpace(line)); len(s.last) > lastLines {
		s.last = s.last[1:]
	}
	s.progress("  " + line)
}

func (s *buildStep) failed(e *jsonstream.Error) error {
	if s.line != "" {
		s.ended(s.line)
	}
	failed := &sandbox.StepError{Step: "the builder", Code: e.Code,
		Output: strings.Join(s.last, "; ")}
	if s.at > 0 {
		failed.Step = s.steps[s.at-1]
	}
	if e.Code == 0 {
		failed.Output = printable(e.Message)
	}
	return failed
}

// Sweep removes what builds of an earlier daemon left: running steps, and images without a name.
// This daemon's unfinished builds have no name either, so Sweep does nothing once a build has
// begun. See sandbox.Finder.
func (bd *builder) Sweep(ctx context.Context) error {
	bd.sweeping.Lock()
	defer bd.sweeping.Unlock()
	return bd.sweep(ctx)
}

func (bd *builder) sweep(ctx context.Context) error {
	if bd.builds {
		return nil
	}
	if err := bd.removeSteps(ctx); err != nil {
		return err
	}
	return bd.engine.prune(ctx, "")
}

// beginBuild sweeps one last time before the first build.
func (bd *builder) beginBuild(ctx context.Context) {
	bd.sweeping.Lock()
	defer bd.sweeping.Unlock()
	if err := bd.sweep(ctx); err != nil {
		bd.engine.log.Warn("an earlier daemon's build was not fully removed", "err", err)
	}
	bd.builds = true
}

// removeSteps removes the containers of build steps. Containers that users run from a built image
// have the label, too; but only the image of a step has no name.
func (bd *builder) removeSteps(ctx context.Context) error {
	found, err := bd.engine.listContainers(ctx, bd.engine.limits.quick, bd.engine.made())
	for _, c := range found {
		if err != nil {
			break
		}
		if c.Labels[labelID] != "" { // a sandbox of a built image has both labels
			continue
		}
		var image client.ImageInspectResult
		image, err = bd.engine.rawImage(ctx, c.ImageID)
		switch {
		case cerrdefs.IsNotFound(err):
			err = nil
		case err == nil && len(image.RepoTags) == 0:
			err = bd.engine.remove(ctx, "", c.ID)
		}
	}
	return err
}
