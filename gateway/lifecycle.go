package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// reachWithin bounds how long a caller waits for a sandbox that is said to run.
const reachWithin = 15 * time.Second

// Remove destroys a sandbox, its files and its records. A creation under way is given up. When ctx ends first the removal
// goes on; when the engine does not answer it is finished as soon as it does.
func (h *Hub) Remove(ctx context.Context, p Principal, name string) error {
	b, err := h.find(p, name)
	if err != nil {
		return err
	}
	if err := p.mayMake("removing"); err != nil {
		return err
	}
	b.abortAct(errRemoved)
	result := make(chan error, 1)
	if !h.tasks.start(func(ctx context.Context) { result <- b.remove(ctx) }) {
		return ErrClosed
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *box) remove(ctx context.Context) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	if b.isGone() {
		return nil
	}
	h := b.hub
	if err := b.become(ctx, func(f *facts) { f.state, f.reason = Deleting, "" }); err != nil {
		return err
	}
	h.unname(b)
	clean, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	if err := b.destroy(clean); err != nil {
		h.later(b)
		return b.reach(err)
	}
	b.mu.Lock()
	b.gone = true
	b.mu.Unlock()
	h.unregister(b)
	return nil
}

// destroy ends all that there is of a sandbox: its connections, its instance, its records, its row. Each step may be
// repeated.
func (b *box) destroy(ctx context.Context) error {
	h := b.hub
	b.letGo(ErrUnknown)
	f := b.get()
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return err
	}
	inst := f.inst
	inst.ID = b.id // a crash in Boot leaves no instance behind in the store, but perhaps one in the engine
	if err := be.Destroy(ctx, inst); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	return b.erase(ctx)
}

// erase removes what the daemon itself keeps of a sandbox.
func (b *box) erase(ctx context.Context) error {
	h := b.hub
	if err := os.RemoveAll(h.records(b.id)); err != nil {
		return fmt.Errorf("remove records of sandbox %s: %w", b.id, err)
	}
	return h.options.Store.Delete(context.WithoutCancel(ctx), b.id)
}

// later finishes a removal in the background, as soon as the engine lets us.
func (h *Hub) later(b *box) { h.finishIn(b, time.Second) }

// laterNow is later without a pause before the first try.
func (h *Hub) laterNow(b *box) { h.finishIn(b, 0) }

func (h *Hub) finishIn(b *box, pause time.Duration) {
	h.tasks.start(func(ctx context.Context) {
		for ; ; pause = min(max(2*pause, time.Second), time.Minute) {
			if !sleep(ctx, pause) || b.lock(ctx) != nil {
				return
			}
			done := b.isGone()
			if !done {
				clean, cancel := context.WithTimeout(ctx, cleanup)
				err := b.destroy(clean)
				cancel()
				if done = err == nil; done {
					b.mu.Lock()
					b.gone = true
					b.mu.Unlock()
					h.unregister(b)
				} else if ctx.Err() == nil {
					h.log.Warn("removal waits", "id", b.id, "err", err)
				}
			}
			b.unlock()
			if done {
				return
			}
		}
	})
}

// sleep waits, and reports whether ctx lives still.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Stop ends all processes of a sandbox; its files stay. Stopping what is stopped is not an error.
func (h *Hub) Stop(ctx context.Context, p Principal, name string) error {
	b, err := h.find(p, name)
	if err != nil {
		return err
	}
	if err := p.mayMake("stopping"); err != nil {
		return err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	f := b.get()
	switch {
	case b.isGone():
		return h.notFound(name)
	case f.state == Stopped:
		return nil
	}
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return err
	}
	stopper, ok := be.(sandbox.Stopper)
	if !ok {
		return b.reach(fmt.Errorf("stop: %w", sandbox.ErrUnsupported))
	}
	h.journal.add(b.id, "stop", map[string]any{"by": p.Name})
	if err := stopper.Stop(ctx, f.inst, h.options.StopGrace); err != nil && !errors.Is(err, sandbox.ErrStopped) {
		return b.reach(fmt.Errorf("stop sandbox %s: %w", b.id, err))
	}
	b.letGo(errors.New("stopped"))
	return b.become(ctx, func(f *facts) { f.state, f.reason = Stopped, "" })
}

// Start starts a stopped, broken or lost sandbox again with its files. Starting what runs is not an error.
func (h *Hub) Start(ctx context.Context, p Principal, name string, progress func(line string)) (Info, error) {
	b, err := h.find(p, name)
	if err != nil {
		return Info{}, err
	}
	if err := p.mayMake("starting"); err != nil {
		return Info{}, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	if _, err := b.start(ctx, progress); err != nil {
		return Info{}, err
	}
	return b.info(), nil
}

// start returns the running instance, started first unless it runs.
func (b *box) start(ctx context.Context, progress func(string)) (sandbox.Instance, error) {
	if err := b.lock(ctx); err != nil {
		return sandbox.Instance{}, err
	}
	defer b.unlock()
	h := b.hub
	f := b.get()
	switch {
	case b.isGone(), f.state == Deleting:
		return sandbox.Instance{}, h.notFound(f.name)
	case f.state == Running:
		return f.inst, nil
	}
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return sandbox.Instance{}, err
	}
	stopper, ok := be.(sandbox.Stopper)
	if !ok {
		return sandbox.Instance{}, b.reach(fmt.Errorf("start: %w", sandbox.ErrUnsupported))
	}
	ctx, done := b.acting(ctx)
	defer done()
	if err := h.slot(ctx); err != nil {
		return sandbox.Instance{}, b.bootError("start", err)
	}
	defer func() { <-h.boots }()
	if progress != nil {
		progress("starting " + f.name)
	}
	h.journal.add(b.id, "start", map[string]any{})
	b.letGo(errors.New("restarted"))
	inst, err := stopper.Start(ctx, f.inst)
	if err != nil {
		if errors.Is(err, sandbox.ErrGone) {
			b.note(ctx, Broken, "gone: it was removed behind the daemon's back")
			return sandbox.Instance{}, b.reach(err)
		}
		return sandbox.Instance{}, b.bootError("start", err)
	}
	inst.Backend = f.inst.Backend
	if err := b.become(ctx, func(f *facts) { f.inst, f.state, f.reason = inst, Running, "" }); err != nil {
		return sandbox.Instance{}, err
	}
	b.keep()
	return inst, nil
}

// note writes down a state that was found, rather than made. That it cannot be written makes it no less true.
func (b *box) note(ctx context.Context, state State, reason string) {
	if f := b.get(); f.state == state && f.reason == reason {
		return
	}
	if err := b.become(ctx, func(f *facts) { f.state, f.reason = state, reason }); err != nil {
		b.hub.log.Error("state not stored", "id", b.id, "state", state, "err", err)
		b.mu.Lock()
		b.facts.state, b.facts.reason, b.facts.since = state, reason, time.Now()
		b.mu.Unlock()
	}
}

// awake returns the running instance, after the creation or start that it takes.
func (b *box) awake(ctx context.Context, progress func(string)) (sandbox.Instance, error) {
	switch f := b.get(); f.state {
	case Running:
		return f.inst, nil
	case Broken:
		// Perhaps it answers again; whoever dials finds out. Restarting it is for its owner to say.
		if f.inst.ID != "" {
			return f.inst, nil
		}
	case Paused:
		return sandbox.Instance{}, &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.name + " is paused", Hint: "resume it with its engine's tools"}
	}
	return b.start(ctx, progress)
}

// Rescue kills every process of a sandbox but its guest, and returns how many. Files stay.
func (h *Hub) Rescue(ctx context.Context, p Principal, name string) (killed int, err error) {
	b, err := h.find(p, name)
	if err != nil {
		return 0, err
	}
	if err := p.mayMake("rescuing"); err != nil {
		return 0, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	c, err := b.control(ctx, nil)
	if err != nil {
		return 0, err
	}
	h.journal.add(b.id, "rescue", map[string]any{"by": p.Name})
	reply, err := c.Do(ctx, wire.Control{Do: "rescue"})
	if err != nil {
		return 0, b.reach(err)
	}
	return reply.Killed, nil
}

// Upstream opens an SSH connection to a sandbox for one relayed client, which closes it. A stopped sandbox is started
// first. Errors wrap ErrUnknown, ErrBroken, ErrEngine or ErrIdentity. Who may only watch gets none: everything can be done on it.
func (h *Hub) Upstream(ctx context.Context, p Principal, name string, progress func(line string)) (*connect.Conn, error) {
	b, err := h.find(p, name)
	if err != nil {
		return nil, err
	}
	if err := p.mayMake("commands"); err != nil {
		return nil, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	return reached(ctx, b, progress, h.pool.SSH)
}

// control returns the control connection of b, which is started first if it was stopped.
func (b *box) control(ctx context.Context, progress func(string)) (*connect.Control, error) {
	return reached(ctx, b, progress, b.hub.pool.Control)
}

// reached dials b. One that stopped without our knowing is started, once; one that was stopped or started by us while it was
// being dialled is dialled again, once.
func reached[C any](ctx context.Context, b *box, progress func(string), dial func(context.Context, sandbox.Instance) (C, error)) (C, error) {
	var none C
	for again := true; ; again = false {
		inst, err := b.awake(ctx, progress)
		if err != nil {
			return none, err
		}
		within, cancel := context.WithTimeout(ctx, reachWithin)
		c, err := dial(within, inst)
		cancel()
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		if errors.Is(err, connect.ErrClosed) { // the dialling was given up: that says nothing of the sandbox
			if again {
				continue
			}
			return none, b.reach(err)
		}
		if b.inspect(ctx, inst, err); again && b.get().state == Stopped {
			continue
		}
		return none, b.reach(err)
	}
}
