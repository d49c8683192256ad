package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/dockerfile"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// makeImage builds the image of a sandbox whose creation is under way, and stores its name.
func (c *creation) makeImage(ctx context.Context, be sandbox.Backend, progress func(string)) error {
	if c.imageSource.build == nil {
		return nil
	}
	images, ok := be.(sandbox.Imager)
	if !ok {
		return c.Reach(fmt.Errorf("dockerfile: %w", sandbox.ErrUnsupported))
	}
	src, err := c.reg.options.openBuild(c.imageSource.build)
	if err != nil {
		return err
	}
	defer src.context.Close()
	if progress == nil {
		progress = func(string) {}
	}
	c.network.building.Store(true)
	defer c.network.building.Store(false)
	arch, err := images.Arch(ctx)
	if err != nil {
		return c.bootError("create", err)
	}
	spool := c.reg.manifests.dir(c.id)
	if err := os.MkdirAll(spool, 0o700); err != nil {
		return stored(err)
	}
	b := &builder{creation: c, backend: be, images: images, progress: progress}
	release := c.reg.accounts.hold(b)
	image, err := dockerfile.Build(ctx, dockerfile.Request{Dockerfile: src.text, Name: src.name,
		Context: src.context, Args: c.imageSource.build.Args, Target: c.imageSource.build.Target,
		Arch: arch, Spool: spool, MaxSpool: c.get().limits().Disk, Progress: progress}, b)
	release()
	if err != nil {
		return c.buildError(ctx, err)
	}
	// The size is known only after the build.
	owner := c.get().Owner
	if err := c.reg.accounts.withImageBytes(ctx, owner, image, func(kept int64) error {
		return c.reg.accounts.imageFits(owner, kept, 0)
	}); err != nil {
		c.reg.accounts.forget(ctx, owner, "")
		return err
	}
	return c.transition(ctx, func(f *Record) { f.Spec.Image = image })
}

// buildError converts an error of a build for the client that asked for the sandbox.
func (c *creation) buildError(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*wire.Error](err); ok && ctx.Err() == nil { // such as a quota
		return e
	}
	if _, ok := errors.AsType[*sandbox.BootError](err); !ok {
		err = sandbox.AtStage(sandbox.StageBuild, err)
	}
	return c.imageError(ctx, "build", err)
}

// builder makes the sandboxes of a build. They have the ID, the network, the limits and the
// isolation of the new sandbox: so they are watched and removed like it. See dockerfile.Sandboxes.
type builder struct {
	*creation
	backend  sandbox.Backend
	images   sandbox.Imager
	progress func(string)

	mu     sync.Mutex
	used   map[string]bool // guarded by mu; that the build uses, by name
	weight int64           // bytes of the layers that it has made
}

// uses reports whether the build uses an image.
func (b *builder) uses(image string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used[image]
}

// spec is a sandbox of the build. Its commands run as root, or as a user that a Dockerfile names,
// and may use setuid programs.
func (b *builder) spec(s dockerfile.Start) sandbox.Spec {
	of := b.get().Spec
	return sandbox.Spec{ID: of.ID, Name: of.Name, Owner: of.Owner, Image: s.Image,
		Network: of.Network, Via: of.Via, Limits: of.Limits, Isolation: of.Isolation,
		Trust: of.Trust, User: "0", Sudo: true, Workdir: s.Workdir, Env: s.Env,
		Entrypoint: sandbox.EntrypointOff, Progress: b.progress}
}

// Image finds an image, or pulls or builds it.
func (b *builder) Image(ctx context.Context, ref string) (sandbox.Image, error) {
	return b.images.Image(ctx, b.spec(dockerfile.Start{Image: ref}))
}

// Find looks for an image of an earlier build.
func (b *builder) Find(ctx context.Context, s dockerfile.Start, l sandbox.Layer) (string, error) {
	l, err := b.keyed(l)
	if err != nil {
		return "", err
	}
	image, err := b.images.Prepared(ctx, b.spec(s), l)
	if image != "" {
		b.use(image)
	}
	return image, err
}

// use keeps an image until the end of the build.
func (b *builder) use(image string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used == nil {
		b.used = make(map[string]bool)
	}
	b.used[image] = true
}

// keyed adds to the key of a layer what its steps could reach: one that was made with access to
// more is not reused.
func (b *builder) keyed(l sandbox.Layer) (sandbox.Layer, error) {
	of := b.get().Asked
	key, err := json.Marshal(map[string]any{"network": of.Network, "allow": of.Allow,
		"isolation": of.Isolation, "trust": of.Trust, "step": l.Key})
	l.Key = string(key)
	return l, err
}

// Make makes a layer. Of concurrent builds with the same one, the first makes it.
func (b *builder) Make(ctx context.Context, s dockerfile.Start, l sandbox.Layer,
	do dockerfile.Do) (image string, err error) {
	of, err := b.keyed(l)
	if err != nil {
		return "", err
	}
	done, err := b.reg.preparing.take(ctx, b.get().Owner+"\x00"+s.Image+"\x00"+of.Key)
	if err != nil {
		return "", err
	}
	defer done()
	if image, err := b.Find(ctx, s, l); err != nil || image != "" {
		return image, err
	}
	err = b.with(ctx, s, func(ctx context.Context, inst sandbox.Instance,
		conn *connect.Conn) error {
		if err := do(ctx, conn); err != nil {
			return err
		}
		whole, done, err := copier{b.Sandbox}.reserveCopy(ctx, b.backend)
		if err != nil {
			return err
		}
		defer done()
		weight, err := b.images.Weight(ctx, inst)
		if err != nil {
			return err
		}
		b.weight += weight
		if err := admission.Copy(b.weight, b.get().limits().Disk); err != nil {
			return err
		}
		image, err = b.images.Prepare(whole, inst, b.get().Owner, of)
		return err
	})
	if err == nil {
		b.use(image)
	}
	return image, err
}

// Visit makes a sandbox only to look into it.
func (b *builder) Visit(ctx context.Context, s dockerfile.Start, do dockerfile.Do) error {
	return b.with(ctx, s, func(ctx context.Context, _ sandbox.Instance, conn *connect.Conn) error {
		return do(ctx, conn)
	})
}

// with calls do with a sandbox, which it removes afterwards.
func (b *builder) with(ctx context.Context, s dockerfile.Start,
	do func(context.Context, sandbox.Instance, *connect.Conn) error) (err error) {
	inst, err := b.bootSpec(ctx, b.backend, b.spec(s))
	if err != nil {
		return err
	}
	// From here on an aborted creation knows the instance to remove, and its disk is watched.
	none := sandbox.Instance{Backend: inst.Backend, Host: inst.Host}
	became := func(inst sandbox.Instance) func(*Record) {
		return func(f *Record) { f.Instance, f.Since = inst, time.Now() }
	}
	if err := b.transition(ctx, became(inst)); err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			return // the end of the creation removes it
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		left := b.backend.Destroy(clean, inst)
		if left == nil {
			left = b.transition(clean, became(none))
		}
		if err == nil {
			err = left
		}
	}()
	if s.ID != "" && inst.Digest != s.ID {
		return sandbox.Hint(fmt.Errorf("image %s: another one got this name during the build",
			s.Image), "try again")
	}
	stop := b.carrying(ctx, inst)
	defer stop()
	conn, err := b.reg.pool.SSH(ctx, inst)
	if err != nil {
		return err
	}
	return do(ctx, inst, conn)
}
