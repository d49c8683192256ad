// Package dockerfile builds images from Dockerfiles. It reads the file and decides what each layer
// is; the sandboxes in which steps run, and the images that keep their results, are the caller's.
// So a step can do what a program of a sandbox can, on every backend that saves images.
package dockerfile

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// Request is what Build makes an image of. All but Args and Target is required.
type Request struct {
	Dockerfile []byte
	Name       string // of the Dockerfile, in messages
	// Directory to copy from, without what .dockerignore names; the caller closes it.
	Context *os.Root
	Args    []string // K=V for ARG instructions; not for secrets: images and messages show them
	Target  string   // stage to build; empty means the last
	Arch    string   // of the sandboxes, in Go's form
	Spool   string   // directory for files of other stages and images
	// MaxSpool bounds these files, in bytes, for each layer; 0 means 4 GiB.
	MaxSpool int64
	// Progress receives steps and their output, a line at a time, safe to display.
	Progress func(line string)
}

// Sandboxes make the sandboxes of a build, one at a time.
type Sandboxes interface {
	// Image finds an image. It pulls or builds a missing one.
	Image(ctx context.Context, ref string) (sandbox.Image, error)
	// Find returns the image of l on s.Image, or "" if there is none.
	Find(ctx context.Context, s Start, l sandbox.Layer) (image string, err error)
	// Make makes a sandbox, calls do, and saves what do left as l on s.Image. If another call has
	// made that image since Find, it returns that one. An error of do is returned as it is, and
	// nothing is saved.
	Make(ctx context.Context, s Start, l sandbox.Layer, do Do) (image string, err error)
	// Visit makes a sandbox, calls do, and saves nothing.
	Visit(ctx context.Context, s Start, do Do) error
}

// Start is how a sandbox of a build begins.
type Start struct {
	Image   string
	ID      string   // of the image; another one by that name is an error
	Workdir string   // where commands begin; empty means that of the image
	Env     []string // K=V, added to those of the image
}

// Do is the work in a sandbox. conn is a connection as root, which it closes.
type Do func(ctx context.Context, conn *connect.Conn) error

// Build makes the image that r describes, in sandboxes of s, and returns its reference. The error
// of a failed step wraps a *sandbox.StepError. Results of earlier builds are reused up to the first
// step that differs. RUN makes a layer, and so do the COPY, ADD and WORKDIR before one. Times of
// files are kept; extended attributes and hard links are not.
func Build(ctx context.Context, r Request, s Sandboxes) (image string, err error) {
	p, err := parse(r)
	if err != nil {
		return "", err
	}
	files, err := openContext(r.Context)
	if err != nil {
		return "", err
	}
	b := &build{Request: r, plan: p, files: files, sandboxes: s, done: make(map[int]result)}
	needed := p.needed()
	for _, i := range needed {
		b.all += 1 + len(p.stages[i].steps)
	}
	for _, i := range needed {
		if b.done[i], err = b.stage(ctx, i); err != nil {
			return "", err
		}
	}
	last := b.done[p.target]
	if image, err = b.configure(ctx, last); err != nil {
		return "", err
	}
	if !b.began {
		b.Progress("found the image of " + r.Name)
	}
	return image, nil
}

// build is one call of Build.
type build struct {
	Request
	*plan
	files     *buildContext
	sandboxes Sandboxes
	done      map[int]result // by stage
	sources   int            // of all copies so far

	all, at int      // instructions; the number of the current one
	began   bool     // a layer is being made, or was
	titles  []string // of the instructions before
}

// result is what a stage has made so far.
type result struct {
	image  string
	id     string              // identifies the image's files
	below  sandbox.ImageConfig // what the image says, without labels of ours
	config sandbox.ImageConfig // what it should say
	args   []string            // K=V of the ARG instructions so far
}

// title shows an instruction. Those that need no work are shown only if a later one does.
func (b *build) title(text string) {
	b.at++
	text = fmt.Sprintf("[%d/%d] %s", b.at, b.all, text)
	if b.began {
		b.Progress(text)
		return
	}
	b.titles = append(b.titles, text)
}

// begin is called before a layer is made.
func (b *build) begin() {
	if b.began {
		return
	}
	b.began = true
	b.Progress("building the image of " + b.Name)
	for _, text := range b.titles {
		b.Progress(text)
	}
}

// layer is a layer to be made.
type layer struct {
	of     any                  // what determines its files, besides the image below
	env    []string             // of the commands that make it
	config *sandbox.ImageConfig // nil is that of the image below
	before func() error         // called before the sandbox is made; nil does nothing
	do     Do
}

// layer makes a layer on r, unless there is one.
func (b *build) layer(ctx context.Context, r *result, l layer) error {
	key, err := json.Marshal(l.of)
	if err != nil {
		return err
	}
	start := Start{Image: r.image, ID: r.id, Workdir: workdir(r.config), Env: l.env}
	want := sandbox.Layer{Key: string(key), Dockerfile: true, Config: l.config}
	image, err := b.sandboxes.Find(ctx, start, want)
	if err == nil && image == "" {
		b.begin()
		if l.before != nil {
			err = l.before()
		}
		if err == nil {
			image, err = b.sandboxes.Make(ctx, start, want, l.do)
		}
	}
	if err != nil {
		return err
	}
	// Its name says what it was made by; if it is made again, its files may differ.
	made, err := b.sandboxes.Image(ctx, image)
	r.image, r.id = image, made.ID
	return err
}

// workdir returns where commands begin, in the form that sandboxes take.
func workdir(c sandbox.ImageConfig) string {
	if c.WorkingDir == "" {
		return ""
	}
	return path.Join("/", c.WorkingDir)
}

// configure returns the image of r with its configuration.
func (b *build) configure(ctx context.Context, r result) (string, error) {
	below, err := json.Marshal(r.below)
	if err != nil {
		return "", err
	}
	want, err := json.Marshal(r.config)
	if err != nil {
		return "", err
	}
	if string(below) == string(want) {
		return r.image, nil
	}
	err = b.layer(ctx, &r, layer{of: map[string]string{"config": string(want)},
		config: &r.config, do: func(_ context.Context, conn *connect.Conn) error {
			return conn.Client().Close()
		}})
	return r.image, err
}

// emptyImage is the image of FROM scratch.
const emptyImage = "sandboxd/empty:latest"

// stage carries out a stage.
func (b *build) stage(ctx context.Context, i int) (result, error) {
	st := b.stages[i]
	var r result
	if st.other != nil {
		return r, st.other
	}
	if st.after != none {
		r = b.done[st.after]
		r.config = clone(r.config)
	} else {
		ref := st.from
		if ref == scratch {
			ref = emptyImage
		}
		img, err := b.sandboxes.Image(ctx, ref)
		if err != nil {
			return r, err
		}
		if st.from == scratch {
			img.Config = sandbox.ImageConfig{}
		}
		below := clone(img.Config)
		maps.DeleteFunc(below.Labels, func(key, _ string) bool {
			return strings.HasPrefix(key, ownLabels)
		})
		r = result{image: ref, id: img.ID, below: below, config: clone(below)}
	}
	b.title(st.title)
	steps, err := b.triggers(r.config.OnBuild)
	if err != nil {
		return r, fmt.Errorf("image %s: %w", brief(st.from), err)
	}
	r.config.OnBuild = nil
	w := &worker{build: b, result: r}
	for _, s := range append(steps, st.steps...) {
		b.title(s.title)
		if err := w.step(ctx, s); err != nil {
			return r, err
		}
	}
	return w.result, w.flush(ctx)
}

// triggers returns the steps that an image adds to a build on it.
func (b *build) triggers(expressions []string) (steps []step, err error) {
	for _, expression := range expressions {
		if b.all++; b.all > maxSteps || len(expression) > maxWord {
			return nil, fmt.Errorf("ONBUILD: more than %d instructions, or a longer one than %d "+
				"bytes", maxSteps, maxWord)
		}
		s, err := b.trigger(expression)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// clone copies what instructions change in place.
func clone(c sandbox.ImageConfig) sandbox.ImageConfig {
	c.Labels = maps.Clone(c.Labels)
	c.Volumes = maps.Clone(c.Volumes)
	c.ExposedPorts = maps.Clone(c.ExposedPorts)
	c.OnBuild = slices.Clone(c.OnBuild)
	return c
}
