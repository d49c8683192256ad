package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/build"
	"github.com/moby/moby/api/types/container"
	engineimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	stageBuild = "build"

	maxDockerfile = 1 << 20
	lastLines     = 12 // of a step, in its error
)

// builder builds images of Dockerfiles by the engine's own builder.
type builder struct {
	engine    *engine
	instances *instances
	images    *images
	meter     *meter // of what a step writes

	sweeping sync.Mutex // held for calls of the engine
	builds   bool       // guarded by sweeping; this daemon has begun a build
}

// Build makes an image by the engine's own builder. See sandbox.Imager.
func (bd *builder) Build(ctx context.Context, s sandbox.BuildSpec) (string, error) {
	ref, err := bd.build(ctx, s)
	if err != nil {
		return "", &sandbox.BootError{Stage: stageBuild, Hint: hintOf(err), Err: err}
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
	if err := validateEnv(s.Args); err != nil {
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
	// The engine finds steps again by what they say. Those that had another network, such as one with this machine's own services, are others.
	d, err := pinDockerfile(s.Dockerfile, s.Name, f.arch, labelMade+"="+bd.engine.daemon+" "+labelNetwork+"="+string(s.Network), s.Args, func(ref string) (image, error) {
		return bd.images.baseImage(ctx, s.Owner, ref, s.Progress)
	})
	if err != nil {
		return "", err
	}
	if d.runs && s.Isolation != "" && s.Isolation != f.defaultRuntime {
		return "", hinted{fmt.Errorf("isolation %q: %w: the engine runs the steps of %s by its default runtime, %s", s.Isolation, sandbox.ErrUnsupported, s.Name, f.defaultRuntime),
			"name an image that was built before, and do in setup: what the RUN steps do"}
	}
	files, err := openContext(s.Context)
	if err != nil {
		return "", err
	}
	sum, err := files.pack(ctx, io.Discard)
	if err != nil {
		return "", err
	}
	ref := bd.images.madeImage(buildPrefix, s.Owner, "1", d.out.String(), strings.Join(slices.Sorted(slices.Values(s.Args)), "\x00"), s.Target, sum)
	// One after the other: the second finds what the first has built, and one that fails does not take the name from another's.
	unlock, err := bd.instances.lock(ctx, ref)
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
			bd.engine.log.Warn("what carried the network of a build is not gone yet", "err", left)
		}
	}()
	s.Progress("building the image of " + s.Name)
	if err := bd.runBuild(ctx, d, files, sum, options, s); err != nil {
		bd.engine.removeImage(context.WithoutCancel(ctx), ref) // an engine that was given up may have tagged it all the same
		return "", err
	}
	if _, err := bd.engine.inspectImage(ctx, ref); err != nil {
		return "", err
	}
	return ref, nil
}

// buildOptions are what the engine is asked for. What its steps may use is what a sandbox may, as far as its builder knows such limits.
func (bd *builder) buildOptions(ctx context.Context, s sandbox.BuildSpec, d *dockerfile, f facts, ref string) (o client.ImageBuildOptions, release func() error, err error) {
	l, err := fit(sandbox.Spec{Limits: s.Limits}, f, bd.engine.cache.defaultNoFile(f))
	if err != nil {
		return o, nil, err
	}
	const period = 100_000
	o = client.ImageBuildOptions{Version: build.BuilderV1, Tags: []string{ref}, Dockerfile: sentDockerfile, Target: s.Target, Remove: true, ForceRemove: true,
		NetworkMode: string(sandbox.NetworkNone), Memory: l.Memory, MemorySwap: l.Memory, CPUPeriod: period, CPUQuota: int64(l.CPUs * period), ShmSize: l.Shm,
		Ulimits: []*container.Ulimit{{Name: "core"}}, BuildArgs: make(map[string]*string)}
	if l.NoFile > 0 {
		o.Ulimits = append(o.Ulimits, &container.Ulimit{Name: "nofile", Soft: l.NoFile, Hard: l.NoFile})
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
		if errors.Is(err, sandbox.ErrUnsupported) { // a sandbox would do with less
			err = hinted{err, "RUN steps with a network take the device: modprobe tun, where that is missing; or --network none; or an image that is built already, by --image"}
		}
		if err != nil {
			return o, nil, fmt.Errorf("network of the build: %w", err)
		}
		o.NetworkMode = "container:" + inst.Ref
		return o, done, nil
	}
	return o, nothing, nil
}

// runBuild sends what there is to build and follows it to its end.
func (bd *builder) runBuild(ctx context.Context, d *dockerfile, files *buildContext, sum string, o client.ImageBuildOptions, s sandbox.BuildSpec) error {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &holding{bd: bd, limits: s.Limits.Or(sandbox.DefaultLimits), room: s.MinFree, base: d.sizes, end: cancel}
	var held sync.WaitGroup
	defer held.Wait()
	defer cancel(nil)
	held.Go(func() { h.watchRoom(ctx) })
	step := &buildStep{steps: d.steps, progress: s.Progress, started: func(id string) { held.Go(func() { h.step(ctx, id) }) }}
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := files.send(ctx, w, d.out.Bytes(), sum)
		w.CloseWithError(err)
		sent <- err
	}()
	followed := bd.followBuild(ctx, step, r, o)
	r.CloseWithError(errors.New("the engine takes no more"))
	if err := <-sent; err != nil && hintOf(err) != "" {
		return err // why the engine ended it
	}
	return followed
}

func (bd *builder) followBuild(ctx context.Context, step *buildStep, archive io.Reader, o client.ImageBuildOptions) error {
	fail := func(err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isUnreachable(err):
			return hinted{fmt.Errorf("%w: %w", sandbox.ErrEngine, err), unreachableHint(err)}
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

// buildStep follows what the builder says. A program in a step may print what looks like it: that misleads a message, and nothing else.
type buildStep struct {
	steps    []string
	progress func(string)
	started  func(id string) // a container is about to be; with the first twelve digits of its ID

	at   int    // number of the step, from 1; 0 before it
	line string // that has not ended
	last []string
}

var (
	stepLine  = regexp.MustCompile(`^Step (\d+)/(\d+) : `)
	stepNoise = regexp.MustCompile(`^( ---> |Successfully (built|tagged) )`)
	// Also behind a last line that has no end; and the colors that the builder gives to what is printed on stderr.
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
	if len(s.line) > 4<<10 { // a line without end is shown in parts
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
				s.progress(step)
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
	line = line[strings.LastIndexByte(line, '\r')+1:] // of one that counts upwards, as apt's does, what it came to
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
	failed := &sandbox.StepError{Step: "the builder", Code: e.Code, Output: strings.Join(s.last, "; ")}
	if s.at > 0 {
		failed.Step = s.steps[s.at-1]
	}
	if e.Code == 0 {
		failed.Output = printable(e.Message)
	}
	return failed
}

// Names of images that are made here and may be made again. As those of snapshots they are one owner's.
const (
	buildPrefix = "sandboxd-build/"
	setupPrefix = "sandboxd-setup/"

	// labelMade is on all that a build leaves, with the daemon that it was for: what has it and no name is nobody's.
	labelMade = "sandboxd.made"
	// labelNetwork is the network that the steps of a build had.
	labelNetwork = "sandboxd.network"
	// maxMade is how many of them are kept; those that were not used for longest go, unless a sandbox is of one.
	maxMade = 32
	// Steps of builds are kept for the next one for so long.
	keepSteps = "24h"
)

// madeImage names the image that is made of something.
func (im *images) madeImage(prefix, owner string, of ...string) string {
	sum := sha256.New()
	for _, part := range of {
		fmt.Fprintf(sum, "%d\n%s", len(part), part)
	}
	return im.ownRepo(prefix, owner) + ":" + hex.EncodeToString(sum.Sum(nil)[:16])
}

// isMade tells images that are made here and may be made again.
func isMade(ref string) bool {
	return strings.HasPrefix(ref, buildPrefix) || strings.HasPrefix(ref, setupPrefix)
}

// madeFor reports whether ref is such an image of owner's.
func (im *images) madeFor(owner, ref string) bool {
	return strings.HasPrefix(ref, im.ownRepo(buildPrefix, owner)+":") || strings.HasPrefix(ref, im.ownRepo(setupPrefix, owner)+":")
}

// Forget removes images that may be made again. See sandbox.Imager.
func (im *images) Forget(ctx context.Context, owner, keep string) (n int, err error) {
	list, err := im.madeImages(ctx)
	if err != nil {
		return 0, fmt.Errorf("forget images: %w", err)
	}
	for _, item := range list {
		for _, ref := range item.RepoTags {
			if ref != keep && im.madeFor(owner, ref) && im.engine.removeUnused(ctx, ref) {
				n++
			}
		}
	}
	return n, nil
}

// madeImages lists what builds and set-ups of this daemon left, steps that have no name included.
func (im *images) madeImages(ctx context.Context) (list []engineimage.Summary, err error) {
	err = im.engine.call(ctx, im.engine.limits.quick, "list images", func(ctx context.Context) error {
		r, err := im.engine.api.ImageList(ctx, client.ImageListOptions{Filters: make(client.Filters).Add("label", labelMade+"="+im.engine.daemon)})
		list = dockersNames(r.Items)
		return err
	})
	return list, err
}

// removeUnused removes an image, and reports whether it went: not by force, so that one which a sandbox is made of stays.
func (e *engine) removeUnused(ctx context.Context, ref string) bool {
	err := e.call(ctx, e.limits.remove, "remove image", func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, ref, client.ImageRemoveOptions{PruneChildren: true})
		return err
	})
	if err != nil {
		e.log.Debug("image stays", "image", ref, "err", err)
	}
	return err == nil
}

// used notes that an image was: the engine remembers when a name was given.
func (e *engine) used(ctx context.Context, ref string) {
	err := e.call(ctx, e.limits.quick, "tag image", func(ctx context.Context) error {
		_, err := e.api.ImageTag(ctx, client.ImageTagOptions{Source: ref, Target: ref})
		return err
	})
	if err != nil {
		e.log.Debug("use of an image not noted", "image", ref, "err", err)
	}
}

// Sweep removes what builds left that ended with an earlier daemon: steps that the engine has not ended yet, and images without a name. What a
// build of this daemon has made so far has no name either: once one has begun, nothing is removed any more. See sandbox.Finder.
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

// beginBuild sweeps for the last time.
func (bd *builder) beginBuild(ctx context.Context) {
	bd.sweeping.Lock()
	defer bd.sweeping.Unlock()
	if err := bd.sweep(ctx); err != nil {
		bd.engine.log.Warn("something of a build of an earlier daemon is left", "err", err)
	}
	bd.builds = true
}

// removeSteps removes the containers of all builds. What somebody runs of an image that was built has its label as well: a step's image has no
// name.
func (bd *builder) removeSteps(ctx context.Context) error {
	var found []container.Summary
	err := bd.engine.call(ctx, bd.engine.limits.quick, "list containers", func(ctx context.Context) error {
		r, err := bd.engine.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", labelMade+"="+bd.engine.daemon)})
		found = r.Items
		return err
	})
	for _, c := range found {
		if c.Labels[labelID] != "" || err != nil { // sandboxes of images that were built have both
			continue
		}
		var of client.ImageInspectResult
		err = bd.engine.call(ctx, bd.engine.limits.quick, "look up image", func(ctx context.Context) (err error) {
			of, err = bd.engine.api.ImageInspect(ctx, c.ImageID)
			return err
		})
		switch {
		case cerrdefs.IsNotFound(err):
			err = nil
		case err == nil && len(of.RepoTags) == 0:
			err = bd.engine.remove(ctx, "", c.ID)
		}
	}
	return err
}

// prune removes images of builds that have no name, and of which none is made, if they are older than that; empty is of any age.
func (e *engine) prune(ctx context.Context, older string) error {
	which := make(client.Filters).Add("dangling", "true").Add("label", labelMade+"="+e.daemon)
	if older != "" {
		which.Add("until", older)
	}
	return e.call(ctx, e.limits.remove, "prune images", func(ctx context.Context) error {
		_, err := e.api.ImagePrune(ctx, client.ImagePruneOptions{Filters: which})
		return err
	})
}

// trimMade makes room for one more image, and removes what earlier builds left that no image is made of.
func (im *images) trimMade(ctx context.Context) {
	if err := im.trim(ctx); err != nil && ctx.Err() == nil {
		im.engine.log.Warn("images of earlier builds are left", "err", err)
	}
}

func (im *images) trim(ctx context.Context) error {
	if err := im.engine.prune(ctx, keepSteps); err != nil {
		return err
	}
	list, err := im.madeImages(ctx)
	if err != nil {
		return err
	}
	since := make(map[string]int64) // when a name was used, in nanoseconds
	for _, item := range list {
		for _, ref := range item.RepoTags {
			if !isMade(ref) {
				continue
			}
			var got client.ImageInspectResult
			if err := im.engine.call(ctx, im.engine.limits.quick, "look up image", func(ctx context.Context) (err error) {
				got, err = im.engine.api.ImageInspect(ctx, ref)
				return err
			}); err != nil {
				continue
			}
			since[ref] = got.Metadata.LastTagTime.UnixNano()
		}
	}
	oldest := slices.SortedFunc(maps.Keys(since), func(a, b string) int { return int(since[a]/1e6 - since[b]/1e6) })
	for _, ref := range oldest[:max(0, len(oldest)-maxMade+1)] {
		im.engine.removeUnused(ctx, ref)
	}
	return nil
}
