package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Snapshot saves the files of the sandbox as an image and returns the image's name, for
// NewSpec.Image of the same owner. tag is a DNS label; empty means the current time. The image is
// completed even if ctx ends first.
func (sb *Sandbox) Snapshot(ctx context.Context, by, tag string) (image string, err error) {
	reg, f := sb.reg, sb.get()
	if tag == "" {
		tag = time.Now().UTC().Format("20060102-150405")
	}
	if _, err := wire.ParseLabel("tag", tag); err != nil {
		return "", err
	}
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	err = copier{sb}.copyFiles(ctx, "snapshot", func(ctx context.Context, s sandbox.Imager,
		inst sandbox.Instance) error {
		image, err = s.Snapshot(ctx, inst, f.Owner, f.Name, tag)
		if errors.Is(err, fs.ErrExist) {
			return &wire.Error{Code: wire.CodeExists, Message: "snapshot " + tag + " of " + f.Name +
				" already exists", Hint: "choose another tag"}
		}
		return err
	})
	if err != nil {
		return "", err
	}
	reg.journal.add(sb.id, "snapshot", map[string]any{"by": by, "image": image})
	return image, nil
}

// Fork creates another sandbox of the same owner, called fork, with the same spec and a copy of the
// files. Sessions, processes and keys are not copied. If it fails, nothing is left behind.
func (sb *Sandbox) Fork(ctx context.Context, by, fork string,
	progress func(line string)) (Info, error) {
	reg := sb.reg
	if _, err := wire.ParseSandbox(fork); err != nil {
		return Info{}, err
	}
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	f := sb.get()
	if err := reg.options.mayBridge(f.Owner, f.Spec.Network); err != nil {
		return Info{}, err
	}
	if err := reg.options.mayOptions(f.Owner, f.Spec.Options); err != nil {
		return Info{}, err
	}
	if f.Instance.ID == "" {
		return Info{}, &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s is %s: it has no files yet", f.Name, f.State)}
	}
	be, err := reg.options.backend(f.Instance.Backend)
	if err != nil {
		return Info{}, err
	}
	if _, ok := be.(sandbox.Imager); !ok {
		return Info{}, sb.Reach(fmt.Errorf("fork: %w", sandbox.ErrUnsupported))
	}
	of, now := f.Name, time.Now()
	f.Name, f.State, f.Reason, f.Since, f.Created = fork, Creating, "", now, now
	f.Spec.ID, f.Spec.Name, f.Spec.Owner = newID(), fork, f.Owner
	f.Dir, f.Recipe = "", "" // the directory and its file stay the source's
	f.Instance = sandbox.Instance{Backend: f.Instance.Backend}
	var forked *Sandbox
	err = reg.accounts.withImageBytes(ctx, f.Owner, "", func(kept int64) (err error) {
		forked, _, err = reg.reserve(f, kept, false, nil)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	c := &creation{Sandbox: forked, source: sb}
	if err := c.create(ctx, progress); err != nil {
		return Info{}, err
	}
	reg.journal.add(forked.id, "fork", map[string]any{"by": by, "of": of})
	return forked.Info(), nil
}

// makeForkImage makes the image of a fork, whose creation is under way, and stores its name.
func (c *creation) makeForkImage(ctx context.Context, progress func(string)) error {
	source := c.source
	if source == nil {
		return nil
	}
	if progress != nil {
		progress("copying the files of " + source.Name())
	}
	var image string
	err := copier{source}.copyFiles(ctx, "fork", func(ctx context.Context, s sandbox.Imager,
		inst sandbox.Instance) (err error) {
		image, err = s.Fork(ctx, inst, c.id)
		return err
	})
	if err != nil {
		return err
	}
	return c.transition(ctx, func(f *Record) { f.Spec.Image = image })
}

// copier makes images of the files of a sandbox.
type copier struct{ *Sandbox }

// copyFiles calls do to make an image of the sandbox's files, if there is room. No other act runs
// meanwhile.
func (c copier) copyFiles(ctx context.Context, what string, do func(context.Context, sandbox.Imager,
	sandbox.Instance) error) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	f := c.get()
	if c.isGone() || f.State == Deleting || f.Instance.ID == "" {
		return c.reg.NotFound(f.Name)
	}
	be, err := c.reg.options.backend(f.Instance.Backend)
	if err != nil {
		return err
	}
	s, ok := be.(sandbox.Imager)
	if !ok {
		return c.Reach(fmt.Errorf("%s: %w", what, sandbox.ErrUnsupported))
	}
	whole, kept, err := c.reserveCopy(ctx, be)
	if err != nil {
		return c.reachFiles(err)
	}
	defer kept()
	return c.reachFiles(do(whole, s, f.Instance))
}

// reserveCopy reserves an image of the files of sb, or returns an error if there is no room. One
// image is made at a time, because each reduces the room for the next. Until done is called, sb is
// frozen, so that its size does not change. Make the image with whole, which ends with Run and not
// with ctx: an engine keeps copying after its caller has gone.
func (c copier) reserveCopy(ctx context.Context,
	be sandbox.Backend) (whole context.Context, done func(), err error) {
	reg := c.reg
	select {
	case reg.copying <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	unfreeze, err := c.freeze(ctx, be)
	if err != nil {
		<-reg.copying
		return nil, nil, err
	}
	whole, end := reg.tasks.bound(context.WithoutCancel(ctx))
	done = func() {
		end()
		unfreeze()
		<-reg.copying
	}
	if s, ok := be.(sandbox.Imager); ok {
		if err := reg.accounts.roomToCopy(ctx, c.Sandbox, be, s); err != nil {
			done()
			return nil, nil, err
		}
	}
	return whole, done, nil
}

const (
	// unfreezeWithin bounds how long an engine may take to unfreeze a sandbox.
	unfreezeWithin = time.Minute
	// copied is the reason of a sandbox that is frozen while its files are copied. The next daemon
	// unfreezes it.
	copied = "frozen while its files are copied"
)

// freeze freezes the sandbox, which is locked, until unfreeze is called. A paused sandbox stays
// paused.
func (c copier) freeze(ctx context.Context, be sandbox.Backend) (unfreeze func(), err error) {
	f := c.get()
	pauser, ok := be.(sandbox.Pauser)
	if !ok || f.State == Paused {
		return func() {}, nil
	}
	if f.State == Running {
		if err := c.transition(ctx, func(f *Record) { f.Reason = copied }); err != nil {
			return nil, err
		}
	}
	c.guest.hold(true)
	unfreeze = func() { c.unfreeze(context.WithoutCancel(ctx), pauser) }
	if err := pauser.Pause(ctx, f.Instance); err != nil && !errors.Is(err, sandbox.ErrStopped) {
		unfreeze() // the engine may still carry out the pause
		return nil, err
	}
	return unfreeze, nil
}

// unfreeze resumes what freeze froze.
func (c copier) unfreeze(ctx context.Context, pauser sandbox.Pauser) {
	ctx, cancel := context.WithTimeout(ctx, unfreezeWithin)
	defer cancel()
	err := pauser.Resume(ctx, c.get().Instance)
	if err == nil && c.get().Reason == copied {
		err = c.transition(ctx, func(f *Record) { f.Reason = "" })
	}
	if err != nil {
		c.reg.log.Error("sandbox may still be frozen after a copy", "id", c.id, "err", err)
	}
	c.guest.hold(false)
}

// reachFiles is Reach for errors whose own text is for the client.
func (c copier) reachFiles(err error) error {
	switch {
	case err == nil, errors.As(err, new(*wire.Error)):
		return err
	case errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrEngine),
		errors.Is(err, context.Canceled):
		return c.Reach(err)
	}
	return &publicError{public: wire.Errorf(wire.CodeUnavailable, "sandbox %s: %s", c.Name(),
		firstLine(err)), err: err}
}
