package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// reachWithin bounds how long a caller waits for a sandbox that is said to run.
const reachWithin = 15 * time.Second

// Removal is what a sandbox that was removed has left behind. The zero value says nothing.
type Removal struct {
	Left string `json:"left,omitempty"` // what was not cleaned up, where the daemon cannot get at it any more, and why
	Hint string `json:"hint,omitempty"` // what to do about that
}

// Remove destroys a sandbox, its files and its records. A creation under way is given up. When ctx
// ends first the removal goes on; when the engine does not answer it is finished as soon as it
// does.
func (h *Hub) Remove(ctx context.Context, p Principal, name string) (Removal, error) {
	b, err := h.mine(p, name, "removing")
	if err != nil {
		return Removal{}, err
	}
	b.abortAct(errRemoved)
	type end struct {
		r   Removal
		err error
	}
	result := make(chan end, 1)
	if !h.tasks.start(func(ctx context.Context) { r, err := b.remove(ctx); result <- end{r, err} }) {
		return Removal{}, ErrClosed
	}
	select {
	case e := <-result:
		return e.r, e.err
	case <-ctx.Done():
		return Removal{}, context.Cause(ctx)
	}
}

func (b *box) remove(ctx context.Context) (Removal, error) {
	return b.removeIf(ctx, func(facts) bool { return true })
}

// removeIf removes b if it is still what its remover took it for.
func (b *box) removeIf(ctx context.Context, still func(facts) bool) (Removal, error) {
	if err := b.lock(ctx); err != nil {
		return Removal{}, err
	}
	defer b.unlock()
	if b.isGone() || !still(b.get()) {
		return Removal{}, nil
	}
	h := b.hub
	if err := b.become(ctx, func(f *facts) { f.state, f.reason = Deleting, "" }); err != nil {
		return Removal{}, err
	}
	b.doom(wire.LostRemoved)
	h.unname(b)
	clean, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	left, err := b.destroy(clean)
	if err != nil {
		h.later(b)
		if errors.Is(err, errUnsure) { // what there is has gone
			return left, nil
		}
		return Removal{}, b.Reach(err)
	}
	return left, nil
}

// destroy ends all that there is of a sandbox: its connections, its instance, its records, its row.
// Each step may be repeated. Without an error the sandbox is gone.
func (b *box) destroy(ctx context.Context) (left Removal, err error) {
	h := b.hub
	b.letGo(ErrUnknown)
	f := b.get()
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return left, err
	}
	inst := f.inst
	inst.ID = b.id // a crash in Boot leaves no instance behind in the store, but perhaps one in the engine
	err = be.Destroy(ctx, inst)
	if e, ok := errors.AsType[*sandbox.LeftError](err); ok {
		left = Removal{Left: firstLine(e), Hint: oneLine(e.Hint, 300)}
		h.log.Warn("removed without cleaning up", "id", b.id, "err", e)
	} else if err != nil {
		return left, fmt.Errorf("removal: %w", err)
	}
	if time.Now().Before(b.unsure) {
		return left, errUnsure
	}
	if err := b.erase(ctx); err != nil {
		return left, err
	}
	b.mu.Lock()
	b.gone = true
	b.mu.Unlock()
	h.unregister(b)
	return left, nil
}

// errUnsure says that there may be something to remove yet.
var errUnsure = errors.New("removal: the backend was asked for it by somebody who gave up, and may be about to make it")

// doubt makes the removal of b look again for a while: a request whose caller has died, or stopped
// waiting, is carried out all the same, perhaps after somebody looked whether it was. b is locked,
// or not used yet.
func (b *box) doubt() {
	if be, err := b.hub.backend(b.get().inst.Backend); err == nil && !isHost(be) { // which makes nothing
		b.unsure = time.Now().Add(b.hub.options.lateBoot)
	}
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
				_, err := b.destroy(clean)
				cancel()
				if done = err == nil; !done && ctx.Err() == nil && !errors.Is(err, errUnsure) {
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
	return h.act(ctx, p, name, "stopping", func(ctx context.Context, b *box, f facts) error {
		b.stops.Interrupt(b.stoppedError())
		if f.state == Stopped {
			return nil
		}
		h.journal.add(b.id, "stop", map[string]any{"by": p.Name})
		return b.halt(ctx, f, "")
	})
}

// act does what its owner asked for with a sandbox that is there, while nobody else acts on it.
func (h *Hub) act(ctx context.Context, p Principal, name, what string, do func(context.Context, *box, facts) error) error {
	b, err := h.mine(p, name, what)
	if err != nil {
		return err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	f := b.get()
	if b.isGone() || f.state == Deleting {
		return h.notFound(name)
	}
	return do(ctx, b, f)
}

// halt stops b, which is locked, for a reason that is shown.
func (b *box) halt(ctx context.Context, f facts, why string) error {
	h := b.hub
	be, err := h.backend(f.inst.Backend)
	if err != nil {
		return err
	}
	stopper, ok := be.(sandbox.Lifecycle)
	if !ok {
		return b.Reach(fmt.Errorf("stop: %w", sandbox.ErrUnsupported))
	}
	b.doom(wire.LostStopped)
	if err := stopper.Stop(ctx, f.inst, h.options.StopGrace); err != nil && !errors.Is(err, sandbox.ErrStopped) {
		b.doom("")
		return b.Reach(fmt.Errorf("stop sandbox %s: %w", b.id, err))
	}
	b.hold(false)
	b.letGo(errors.New("stopped"))
	defer h.pooled.Kick() // there may be room for another
	return b.become(ctx, func(f *facts) { f.state, f.reason = Stopped, why })
}

// Start starts a stopped, broken or lost sandbox again with its files, and resumes a paused one.
// Starting what runs is not an error.
func (h *Hub) Start(ctx context.Context, p Principal, name string, progress func(line string)) (Info, error) {
	b, err := h.mine(p, name, "starting")
	if err != nil {
		return Info{}, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	if f := b.get(); f.state == Running {
		b.inspect(ctx, f.inst, nil) // it may have ended a moment ago
	}
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
	if isHost(be) {
		return b.tryAgain(ctx, f.inst)
	}
	if f.state == Paused {
		if progress != nil {
			progress("resuming " + f.name)
		}
		return f.inst, b.resume(ctx, be, f)
	}
	stopper, ok := be.(sandbox.Lifecycle)
	if !ok {
		return sandbox.Instance{}, b.Reach(fmt.Errorf("start: %w", sandbox.ErrUnsupported))
	}
	if err := h.roomToRun(ctx, be); err != nil {
		return sandbox.Instance{}, err
	}
	started, err := h.mayStart(b)
	if err != nil {
		return sandbox.Instance{}, err
	}
	defer started()
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
	b.weigh(ctx, be, f)
	inst, err := stopper.Start(ctx, f.inst)
	if err != nil {
		if errors.Is(err, sandbox.ErrGone) {
			b.note(ctx, Broken, "gone: it was removed behind the daemon's back")
			return sandbox.Instance{}, b.Reach(err)
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

// note writes down a state that was found, rather than made. That it cannot be written makes it no
// less true.
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

// awake returns the running instance, after the creation, start or resumption that it takes.
func (b *box) awake(ctx context.Context, progress func(string)) (sandbox.Instance, error) {
	switch f := b.get(); f.state {
	case Running:
		return f.inst, nil
	case Broken:
		// Perhaps it answers again; whoever dials finds out. Restarting it is for its owner to say.
		if f.inst.ID != "" {
			return f.inst, nil
		}
	}
	return b.start(ctx, progress)
}

// Rescue kills every process of a sandbox but its guest, and returns how many. Files stay.
func (h *Hub) Rescue(ctx context.Context, p Principal, name string) (killed int, err error) {
	b, err := h.mine(p, name, "rescuing")
	if err != nil {
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
		return 0, b.Reach(err)
	}
	return reply.Killed, nil
}

// Upstream opens an SSH connection to a sandbox for one relayed client, which closes it. A stopped
// sandbox is started first. Errors wrap ErrUnknown, ErrBroken, ErrEngine or ErrIdentity. Who may
// only watch gets none: everything can be done on it.
func (h *Hub) Upstream(ctx context.Context, p Principal, name string, progress func(line string)) (*connect.Conn, error) {
	b, p, err := h.reachable(p, name, wire.RightDrive, "commands, files and forwards")
	if err != nil {
		return nil, err
	}
	if err := p.mayMake("commands"); err != nil {
		return nil, err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	if err := b.Silence(); err != nil && !b.IsHost() {
		return nil, err
	}
	c, err := reached(ctx, b, progress, h.pool.SSH)
	if err == nil {
		leave := b.listening.enter()
		b.relays.add(c, p.Name, func() { b.Touch(); leave() })
	}
	if err == nil && b.get().owner != p.Name {
		if rights, _ := b.rightsOf(p.Name); rights != wire.RightDrive { // it ended while it was dialled
			c.Close()
			return nil, h.notFound(name)
		}
	}
	return c, err
}

// control returns the control connection of b, which is started first if it was stopped.
func (b *box) control(ctx context.Context, progress func(string)) (*connect.Control, error) {
	return reached(ctx, b, progress, b.hub.pool.Control)
}

// Control is control for a party on a session. A sandbox that does not run has no sessions, so it
// is started for a party that may drive and would start the session, too, and for nobody else. One
// that is paused is resumed for a party that may drive.
func (b *box) Control(ctx context.Context, party wire.Party, session string, starts bool, progress func(string)) (*connect.Control, error) {
	if err := b.Silence(); err != nil {
		return nil, err
	}
	if party.Rights != wire.RightWatch && (starts || b.get().state == Paused) {
		return b.control(ctx, progress)
	}
	f := b.get()
	if f.state != Running {
		return nil, b.NotRunning(session)
	}
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	c, err := b.hub.pool.Control(ctx, f.inst)
	if err != nil {
		return nil, b.Reach(err)
	}
	return c, nil
}

// reached dials b. One that stopped without our knowing is started, once; one whose connections
// were ended by us while it was being dialled is dialled again, once. When its owner stops it
// meanwhile, that is the end: to start it again is for a later call.
func reached[C any](ctx context.Context, b *box, progress func(string), dial func(context.Context, sandbox.Instance) (C, error)) (C, error) {
	var none C
	ctx, done := b.stops.Within(ctx)
	defer done()
	for again := true; ; again = false {
		inst, err := b.awake(ctx, progress)
		if err != nil {
			return none, err
		}
		unfrozen, over := b.Within(ctx)
		within, cancel := context.WithTimeout(unfrozen, reachWithin)
		c, err := dial(within, inst)
		cancel()
		frozen := attach.FrozenOr(unfrozen, err)
		over()
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		if errors.As(frozen, new(*attach.FrozenError)) { // it answers nobody
			return none, frozen
		}
		if errors.Is(err, connect.ErrClosed) { // the dialling was given up: that says nothing of the sandbox
			if again {
				continue
			}
			return none, b.Reach(err)
		}
		if b.inspect(ctx, inst, err); again && b.get().state == Stopped {
			continue
		}
		return none, b.Reach(err)
	}
}
