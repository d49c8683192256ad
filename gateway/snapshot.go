package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Snapshot keeps the files of one of p's sandboxes as an image, and returns its name: NewSpec.Image
// of a sandbox of p's, and of nobody else's. tag is a DNS label; empty is the time. An image that
// is being made when ctx ends is made all the same.
func (h *Hub) Snapshot(ctx context.Context, p Principal, name, tag string) (image string, err error) {
	b, err := h.mine(p, name, "snapshots")
	if err != nil {
		return "", err
	}
	if tag == "" {
		tag = time.Now().UTC().Format("20060102-150405")
	}
	if _, err := wire.ParseLabel("tag", tag); err != nil {
		return "", err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	err = b.keepFiles(ctx, "snapshot", func(ctx context.Context, s sandbox.Imager, inst sandbox.Instance) error {
		image, err = s.Snapshot(ctx, inst, p.Name, name, tag)
		if errors.Is(err, fs.ErrExist) {
			return &wire.Error{Code: wire.CodeExists, Message: "there is a snapshot " + tag + " of " + name + " already", Hint: "choose another tag"}
		}
		return err
	})
	if err != nil {
		return "", err
	}
	h.journal.add(b.id, "snapshot", map[string]any{"by": p.Name, "image": image})
	return image, nil
}

// Fork makes another sandbox of p's, called fork, as name was made and with the files that it has
// now. Sessions, processes and keys are its own. As Create it is all or nothing.
func (h *Hub) Fork(ctx context.Context, p Principal, name, fork string, progress func(line string)) (Info, error) {
	source, err := h.mine(p, name, "creating")
	if err != nil {
		return Info{}, err
	}
	if _, err := wire.ParseSandbox(fork); err != nil {
		return Info{}, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	f := source.get()
	if err := h.mayBridge(p, f.spec.Network); err != nil {
		return Info{}, err
	}
	if err := h.mayOptions(p, f.spec.Options); err != nil {
		return Info{}, err
	}
	if f.inst.ID == "" {
		return Info{}, &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("sandbox %s is %s: it has no files yet", name, f.state)}
	}
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return Info{}, err
	}
	if _, ok := be.(sandbox.Imager); !ok {
		return Info{}, source.Reach(fmt.Errorf("fork: %w", sandbox.ErrUnsupported))
	}
	now := time.Now()
	f.name, f.owner, f.state, f.reason, f.since, f.created = fork, p.Name, Creating, "", now, now
	f.spec.ID, f.spec.Name, f.spec.Owner = newID(), fork, p.Name
	f.spec.Dir = "" // that is the first one's
	f.inst = sandbox.Instance{Backend: f.inst.Backend}
	var b *box
	err = h.withKept(ctx, p.Name, "", func(kept int64) (err error) {
		b, _, err = h.reserve(p, f, kept, false, nil)
		return err
	})
	if err != nil {
		return Info{}, err
	}
	b.source = source
	if err := b.create(ctx, progress); err != nil {
		return Info{}, err
	}
	h.journal.add(b.id, "fork", map[string]any{"by": p.Name, "of": name})
	return b.info(), nil
}

// takeFiles makes the image of a fork, whose creation is under way, and writes it down.
func (b *box) takeFiles(ctx context.Context, progress func(string)) error {
	source := b.source
	if source == nil {
		return nil
	}
	b.source = nil
	if progress != nil {
		progress("copying the files of " + source.Name())
	}
	var image string
	err := source.keepFiles(ctx, "fork", func(ctx context.Context, s sandbox.Imager, inst sandbox.Instance) (err error) {
		image, err = s.Fork(ctx, inst, b.id)
		return err
	})
	if err != nil {
		return err
	}
	return b.become(ctx, func(f *facts) { f.spec.Image = image })
}

// keepFiles makes an image of the files of b, which nobody may remove or start meanwhile, if there
// is room for it.
func (b *box) keepFiles(ctx context.Context, what string, do func(context.Context, sandbox.Imager, sandbox.Instance) error) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	f := b.get()
	if b.isGone() || f.state == Deleting || f.inst.ID == "" {
		return b.hub.notFound(f.name)
	}
	be, err := b.hub.backend(f.inst.Backend)
	if err != nil {
		return err
	}
	s, ok := be.(sandbox.Imager)
	if !ok {
		return b.Reach(fmt.Errorf("%s: %w", what, sandbox.ErrUnsupported))
	}
	whole, kept, err := b.mayKeep(ctx, be)
	if err != nil {
		return b.reachFiles(err)
	}
	defer kept()
	return b.reachFiles(do(whole, s, f.inst))
}

// mayKeep returns an error if there is no room for an image of the files of b. The returned
// function is called when it is made, or will not be: one after the other, because what the first
// one takes the second one does not have. Until then b is frozen: what is weighed is what will be
// copied. It is made with the returned context, which ends with Run, and not with ctx: an engine
// that is no longer waited for goes on copying.
func (b *box) mayKeep(ctx context.Context, be sandbox.Backend) (whole context.Context, done func(), err error) {
	h := b.hub
	select {
	case h.keeping <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	thaw, err := b.still(ctx, be)
	if err != nil {
		<-h.keeping
		return nil, nil, err
	}
	whole, end := h.tasks.bound(context.WithoutCancel(ctx))
	done = func() {
		end()
		thaw()
		<-h.keeping
	}
	if s, ok := be.(sandbox.Imager); ok {
		if err := h.roomToKeep(ctx, b, be, s); err != nil {
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

// still freezes what runs in b, which is locked, until thaw is called. Whoever has it frozen
// already keeps it so.
func (b *box) still(ctx context.Context, be sandbox.Backend) (thaw func(), err error) {
	f := b.get()
	pauser, ok := be.(sandbox.Pauser)
	if !ok || f.state == Paused {
		return func() {}, nil
	}
	if f.state == Running {
		if err := b.become(ctx, func(f *facts) { f.reason = copied }); err != nil {
			return nil, err
		}
	}
	b.hold(true)
	thaw = func() { b.thaw(context.WithoutCancel(ctx), pauser) }
	if err := pauser.Pause(ctx, f.inst); err != nil && !errors.Is(err, sandbox.ErrStopped) {
		thaw() // the engine may be at it for who gave up
		return nil, err
	}
	return thaw, nil
}

// thaw lets go on what still froze.
func (b *box) thaw(ctx context.Context, pauser sandbox.Pauser) {
	ctx, cancel := context.WithTimeout(ctx, thawWithin)
	defer cancel()
	err := pauser.Resume(ctx, b.get().inst)
	if err == nil && b.get().reason == copied {
		err = b.become(ctx, func(f *facts) { f.reason = "" })
	}
	if err != nil {
		b.hub.log.Error("a sandbox whose files were copied may still be frozen", "id", b.id, "err", err)
	}
	b.hold(false)
}

// reachFiles is reach for errors that say themselves what is wrong.
func (b *box) reachFiles(err error) error {
	switch {
	case err == nil, errors.As(err, new(*wire.Error)):
		return err
	case errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrEngine), errors.Is(err, context.Canceled):
		return b.Reach(err)
	}
	return &shown{public: wire.Errorf(wire.CodeUnavailable, "sandbox %s: %s", b.Name(), firstLine(err)), err: err}
}
