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

// Snapshot keeps the files of a sandbox as an image, and returns its name: NewSpec.Image of a
// sandbox of the same owner, and of nobody else's. tag is a DNS label; empty is the time. An image that
// is being made when ctx ends is made all the same.
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
	err = copier{sb}.keepFiles(ctx, "snapshot", func(ctx context.Context, s sandbox.Imager, inst sandbox.Instance) error {
		image, err = s.Snapshot(ctx, inst, f.Owner, f.Name, tag)
		if errors.Is(err, fs.ErrExist) {
			return &wire.Error{Code: wire.CodeExists, Message: "there is a snapshot " + tag + " of " + f.Name + " already", Hint: "choose another tag"}
		}
		return err
	})
	if err != nil {
		return "", err
	}
	reg.journal.add(sb.id, "snapshot", map[string]any{"by": by, "image": image})
	return image, nil
}

// Fork makes another sandbox of the same owner, called fork, as this one was made and with the files
// that this one has now. Sessions, processes and keys are its own. As Create it is all or nothing.
func (sb *Sandbox) Fork(ctx context.Context, by, fork string, progress func(line string)) (Info, error) {
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
		return Info{}, &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("sandbox %s is %s: it has no files yet", f.Name, f.State)}
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
	f.Dir, f.Recipe = "", "" // those are the first one's
	f.Instance = sandbox.Instance{Backend: f.Instance.Backend}
	var forked *Sandbox
	err = reg.accounts.withKept(ctx, f.Owner, "", func(kept int64) (err error) {
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

// takeFiles makes the image of a fork, whose creation is under way, and writes it down.
func (c *creation) takeFiles(ctx context.Context, progress func(string)) error {
	source := c.source
	if source == nil {
		return nil
	}
	if progress != nil {
		progress("copying the files of " + source.Name())
	}
	var image string
	err := copier{source}.keepFiles(ctx, "fork", func(ctx context.Context, s sandbox.Imager, inst sandbox.Instance) (err error) {
		image, err = s.Fork(ctx, inst, c.id)
		return err
	})
	if err != nil {
		return err
	}
	return c.become(ctx, func(f *Record) { f.Spec.Image = image })
}

// copier makes images of the files of a sandbox.
type copier struct{ *Sandbox }

// keepFiles makes an image of the files of the sandbox, which nobody may remove or start meanwhile, if there
// is room for it.
func (c copier) keepFiles(ctx context.Context, what string, do func(context.Context, sandbox.Imager, sandbox.Instance) error) error {
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
	whole, kept, err := c.mayKeep(ctx, be)
	if err != nil {
		return c.reachFiles(err)
	}
	defer kept()
	return c.reachFiles(do(whole, s, f.Instance))
}

// mayKeep returns an error if there is no room for an image of the files of sb. The returned
// function is called when it is made, or will not be: one after the other, because what the first
// one takes the second one does not have. Until then sb is frozen: what is weighed is what will be
// copied. It is made with the returned context, which ends with Run, and not with ctx: an engine
// that is no longer waited for goes on copying.
func (c copier) mayKeep(ctx context.Context, be sandbox.Backend) (whole context.Context, done func(), err error) {
	reg := c.reg
	select {
	case reg.keeping <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	thaw, err := c.still(ctx, be)
	if err != nil {
		<-reg.keeping
		return nil, nil, err
	}
	whole, end := reg.tasks.bound(context.WithoutCancel(ctx))
	done = func() {
		end()
		thaw()
		<-reg.keeping
	}
	if s, ok := be.(sandbox.Imager); ok {
		if err := reg.accounts.roomToKeep(ctx, c.Sandbox, be, s); err != nil {
			done()
			return nil, nil, err
		}
	}
	return whole, done, nil
}

const (
	// thawWithin is how long an engine is given to let a sandbox go on.
	thawWithin = time.Minute
	// copied is the reason of a sandbox that runs, and is frozen for the time being: by it the next
	// daemon lets it go on.
	copied = "frozen while its files are copied"
)

// still freezes what runs in the sandbox, which is locked, until thaw is called. Whoever has it frozen
// already keeps it so.
func (c copier) still(ctx context.Context, be sandbox.Backend) (thaw func(), err error) {
	f := c.get()
	pauser, ok := be.(sandbox.Pauser)
	if !ok || f.State == Paused {
		return func() {}, nil
	}
	if f.State == Running {
		if err := c.become(ctx, func(f *Record) { f.Reason = copied }); err != nil {
			return nil, err
		}
	}
	c.guest.hold(true)
	thaw = func() { c.thaw(context.WithoutCancel(ctx), pauser) }
	if err := pauser.Pause(ctx, f.Instance); err != nil && !errors.Is(err, sandbox.ErrStopped) {
		thaw() // the engine may be at it for who gave up
		return nil, err
	}
	return thaw, nil
}

// thaw lets go on what still froze.
func (c copier) thaw(ctx context.Context, pauser sandbox.Pauser) {
	ctx, cancel := context.WithTimeout(ctx, thawWithin)
	defer cancel()
	err := pauser.Resume(ctx, c.get().Instance)
	if err == nil && c.get().Reason == copied {
		err = c.become(ctx, func(f *Record) { f.Reason = "" })
	}
	if err != nil {
		c.reg.log.Error("a sandbox whose files were copied may still be frozen", "id", c.id, "err", err)
	}
	c.guest.hold(false)
}

// reachFiles is reach for errors that say themselves what is wrong.
func (c copier) reachFiles(err error) error {
	switch {
	case err == nil, errors.As(err, new(*wire.Error)):
		return err
	case errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrEngine), errors.Is(err, context.Canceled):
		return c.Reach(err)
	}
	return &shown{public: wire.Errorf(wire.CodeUnavailable, "sandbox %s: %s", c.Name(), firstLine(err)), err: err}
}
