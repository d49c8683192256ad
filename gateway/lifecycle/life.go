package lifecycle

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
func (sb *Sandbox) Remove(ctx context.Context) (Removal, error) {
	sb.abortAct(errRemoved)
	type end struct {
		r   Removal
		err error
	}
	result := make(chan end, 1)
	if !sb.reg.tasks.start(func(ctx context.Context) { r, err := sb.remove(ctx); result <- end{r, err} }) {
		return Removal{}, ErrClosed
	}
	select {
	case e := <-result:
		return e.r, e.err
	case <-ctx.Done():
		return Removal{}, context.Cause(ctx)
	}
}

func (sb *Sandbox) remove(ctx context.Context) (Removal, error) {
	return sb.removeIf(ctx, func(Record) bool { return true })
}

// removeIf removes sb if it is still what its remover took it for.
func (sb *Sandbox) removeIf(ctx context.Context, still func(Record) bool) (Removal, error) {
	if err := sb.lock(ctx); err != nil {
		return Removal{}, err
	}
	defer sb.unlock()
	if sb.isGone() || !still(sb.get()) {
		return Removal{}, nil
	}
	reg := sb.reg
	if err := sb.become(ctx, func(f *Record) { f.State, f.Reason = Deleting, "" }); err != nil {
		return Removal{}, err
	}
	sb.doom(wire.LostRemoved)
	reg.unname(sb)
	clean, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	left, err := sb.destroy(clean)
	if err != nil {
		reg.later(sb)
		if errors.Is(err, errUnsure) { // what there is has gone
			return left, nil
		}
		return Removal{}, sb.Reach(err)
	}
	return left, nil
}

// destroy ends all that there is of a sandbox: its connections, its instance, its records, its row.
// Each step may be repeated. Without an error the sandbox is gone.
func (sb *Sandbox) destroy(ctx context.Context) (left Removal, err error) {
	reg := sb.reg
	sb.letGo(ErrUnknown)
	f := sb.get()
	be, err := reg.backend(f.Instance.Backend)
	if err != nil {
		return left, err
	}
	inst := f.Instance
	inst.ID = sb.id // a crash in Boot leaves no instance behind in the store, but perhaps one in the engine
	err = be.Destroy(ctx, inst)
	if e, ok := errors.AsType[*sandbox.LeftError](err); ok {
		left = Removal{Left: firstLine(e), Hint: oneLine(e.Hint, 300)}
		reg.log.Warn("removed without cleaning up", "id", sb.id, "err", e)
	} else if err != nil {
		return left, fmt.Errorf("removal: %w", err)
	}
	if time.Now().Before(sb.unsure) {
		return left, errUnsure
	}
	if err := sb.erase(ctx); err != nil {
		return left, err
	}
	sb.mu.Lock()
	sb.gone = true
	sb.mu.Unlock()
	reg.unregister(sb)
	return left, nil
}

// errUnsure says that there may be something to remove yet.
var errUnsure = errors.New("removal: the backend was asked for it by somebody who gave up, and may be about to make it")

// doubt makes the removal of sb look again for a while: a request whose caller has died, or stopped
// waiting, is carried out all the same, perhaps after somebody looked whether it was. sb is locked,
// or not used yet.
func (sb *Sandbox) doubt() {
	if be, err := sb.reg.backend(sb.get().Instance.Backend); err == nil && !isHost(be) { // which makes nothing
		sb.unsure = time.Now().Add(sb.reg.options.lateBoot)
	}
}

// erase removes what the daemon itself keeps of a sandbox.
func (sb *Sandbox) erase(ctx context.Context) error {
	reg := sb.reg
	if err := os.RemoveAll(reg.records(sb.id)); err != nil {
		return fmt.Errorf("remove records of sandbox %s: %w", sb.id, err)
	}
	return reg.options.Store.Delete(context.WithoutCancel(ctx), sb.id)
}

// later finishes a removal in the background, as soon as the engine lets us.
func (reg *Registry) later(sb *Sandbox) { reg.finishIn(sb, time.Second) }

// laterNow is later without a pause before the first try.
func (reg *Registry) laterNow(sb *Sandbox) { reg.finishIn(sb, 0) }

func (reg *Registry) finishIn(sb *Sandbox, pause time.Duration) {
	reg.tasks.start(func(ctx context.Context) {
		for ; ; pause = min(max(2*pause, time.Second), time.Minute) {
			if !sleep(ctx, pause) || sb.lock(ctx) != nil {
				return
			}
			done := sb.isGone()
			if !done {
				clean, cancel := context.WithTimeout(ctx, cleanup)
				_, err := sb.destroy(clean)
				cancel()
				if done = err == nil; !done && ctx.Err() == nil && !errors.Is(err, errUnsure) {
					reg.log.Warn("removal waits", "id", sb.id, "err", err)
				}
			}
			sb.unlock()
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
func (sb *Sandbox) Stop(ctx context.Context, by string) error {
	return sb.act(ctx, func(ctx context.Context, f Record) error {
		sb.stops.Interrupt(sb.stoppedError())
		if f.State == Stopped {
			return nil
		}
		sb.reg.journal.add(sb.id, "stop", map[string]any{"by": by})
		return sb.halt(ctx, f, "")
	})
}

// act calls do with a sandbox that is there, while nobody else acts on it.
func (sb *Sandbox) act(ctx context.Context, do func(context.Context, Record) error) error {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	if err := sb.lock(ctx); err != nil {
		return err
	}
	defer sb.unlock()
	f := sb.get()
	if sb.isGone() || f.State == Deleting {
		return sb.reg.NotFound(f.Name)
	}
	return do(ctx, f)
}

// halt stops sb, which is locked, for a reason that is shown.
func (sb *Sandbox) halt(ctx context.Context, f Record, why string) error {
	reg := sb.reg
	be, err := reg.backend(f.Instance.Backend)
	if err != nil {
		return err
	}
	stopper, ok := be.(sandbox.Lifecycle)
	if !ok {
		return sb.Reach(fmt.Errorf("stop: %w", sandbox.ErrUnsupported))
	}
	sb.doom(wire.LostStopped)
	if err := stopper.Stop(ctx, f.Instance, reg.options.StopGrace); err != nil && !errors.Is(err, sandbox.ErrStopped) {
		sb.doom("")
		return sb.Reach(fmt.Errorf("stop sandbox %s: %w", sb.id, err))
	}
	sb.hold(false)
	sb.letGo(errors.New("stopped"))
	defer reg.pooled.Kick() // there may be room for another
	return sb.become(ctx, func(f *Record) { f.State, f.Reason = Stopped, why })
}

// Start starts a stopped, broken or lost sandbox again with its files, and resumes a paused one.
// Starting what runs is not an error.
func (sb *Sandbox) Start(ctx context.Context, progress func(line string)) (Info, error) {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	if f := sb.get(); f.State == Running {
		sb.inspect(ctx, f.Instance, nil) // it may have ended a moment ago
	}
	if _, err := sb.start(ctx, progress); err != nil {
		return Info{}, err
	}
	return sb.Info(), nil
}

// start returns the running instance, started first unless it runs.
func (sb *Sandbox) start(ctx context.Context, progress func(string)) (sandbox.Instance, error) {
	if err := sb.lock(ctx); err != nil {
		return sandbox.Instance{}, err
	}
	defer sb.unlock()
	reg := sb.reg
	f := sb.get()
	switch {
	case sb.isGone(), f.State == Deleting:
		return sandbox.Instance{}, reg.NotFound(f.Name)
	case f.State == Running:
		return f.Instance, nil
	}
	be, err := reg.backend(f.Instance.Backend)
	if err != nil {
		return sandbox.Instance{}, err
	}
	if isHost(be) {
		return sb.tryAgain(ctx, f.Instance)
	}
	if f.State == Paused {
		if progress != nil {
			progress("resuming " + f.Name)
		}
		return f.Instance, sb.resume(ctx, be, f)
	}
	stopper, ok := be.(sandbox.Lifecycle)
	if !ok {
		return sandbox.Instance{}, sb.Reach(fmt.Errorf("start: %w", sandbox.ErrUnsupported))
	}
	if err := reg.roomToRun(ctx, be); err != nil {
		return sandbox.Instance{}, err
	}
	started, err := reg.mayStart(sb)
	if err != nil {
		return sandbox.Instance{}, err
	}
	defer started()
	ctx, done := sb.acting(ctx)
	defer done()
	if err := reg.slot(ctx); err != nil {
		return sandbox.Instance{}, sb.bootError("start", err)
	}
	defer func() { <-reg.boots }()
	if progress != nil {
		progress("starting " + f.Name)
	}
	reg.journal.add(sb.id, "start", map[string]any{})
	sb.letGo(errors.New("restarted"))
	sb.weigh(ctx, be, f)
	inst, err := stopper.Start(ctx, f.Instance)
	if err != nil {
		if errors.Is(err, sandbox.ErrGone) {
			sb.note(ctx, Broken, "gone: it was removed behind the daemon's back")
			return sandbox.Instance{}, sb.Reach(err)
		}
		return sandbox.Instance{}, sb.bootError("start", err)
	}
	inst.Backend = f.Instance.Backend
	if err := sb.become(ctx, func(f *Record) { f.Instance, f.State, f.Reason = inst, Running, "" }); err != nil {
		return sandbox.Instance{}, err
	}
	sb.keep()
	return inst, nil
}

// note writes down a state that was found, rather than made. That it cannot be written makes it no
// less true.
func (sb *Sandbox) note(ctx context.Context, state State, reason string) {
	if f := sb.get(); f.State == state && f.Reason == reason {
		return
	}
	if err := sb.become(ctx, func(f *Record) { f.State, f.Reason = state, reason }); err != nil {
		sb.reg.log.Error("state not stored", "id", sb.id, "state", state, "err", err)
		sb.mu.Lock()
		sb.record.State, sb.record.Reason, sb.record.Since = state, reason, time.Now()
		sb.mu.Unlock()
	}
}

// awake returns the running instance, after the creation, start or resumption that it takes.
func (sb *Sandbox) awake(ctx context.Context, progress func(string)) (sandbox.Instance, error) {
	switch f := sb.get(); f.State {
	case Running:
		return f.Instance, nil
	case Broken:
		// Perhaps it answers again; whoever dials finds out. Restarting it is for its owner to say.
		if f.Instance.ID != "" {
			return f.Instance, nil
		}
	}
	return sb.start(ctx, progress)
}

// Rescue kills every process of a sandbox but its guest, and returns how many. Files stay.
func (sb *Sandbox) Rescue(ctx context.Context, by string) (killed int, err error) {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	c, err := sb.control(ctx, nil)
	if err != nil {
		return 0, err
	}
	sb.reg.journal.add(sb.id, "rescue", map[string]any{"by": by})
	reply, err := c.Do(ctx, wire.Control{Do: "rescue"})
	if err != nil {
		return 0, sb.Reach(err)
	}
	return reply.Killed, nil
}

// Upstream opens an SSH connection to a sandbox for one relayed client of a principal that may
// drive; the client closes it. A stopped sandbox is started first. Errors wrap ErrUnknown,
// ErrBroken, ErrEngine or ErrIdentity.
func (sb *Sandbox) Upstream(ctx context.Context, principal string, progress func(line string)) (*connect.Conn, error) {
	reg := sb.reg
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	if err := sb.Silence(); err != nil && !sb.IsHost() {
		return nil, err
	}
	c, err := reached(ctx, sb, progress, reg.pool.SSH)
	if err == nil {
		leave := sb.listening.enter()
		sb.relays.add(c, principal, func() { sb.Touch(); leave() })
	}
	if err == nil {
		if rights, _ := sb.RightsOf(principal); rights != wire.RightDrive { // it ended while it was dialled
			c.Close()
			return nil, reg.NotFound(sb.Name())
		}
	}
	return c, err
}

// control returns the control connection of sb, which is started first if it was stopped.
func (sb *Sandbox) control(ctx context.Context, progress func(string)) (*connect.Control, error) {
	return reached(ctx, sb, progress, sb.reg.pool.Control)
}

// Control is control for a party on a session. A sandbox that does not run has no sessions, so it
// is started for a party that may drive and would start the session, too, and for nobody else. One
// that is paused is resumed for a party that may drive.
func (sb *Sandbox) Control(ctx context.Context, party wire.Party, session string, starts bool, progress func(string)) (*connect.Control, error) {
	if err := sb.Silence(); err != nil {
		return nil, err
	}
	if party.Rights != wire.RightWatch && (starts || sb.get().State == Paused) {
		return sb.control(ctx, progress)
	}
	f := sb.get()
	if f.State != Running {
		return nil, sb.NotRunning(session)
	}
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	c, err := sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return nil, sb.Reach(err)
	}
	return c, nil
}

// reached dials sb. One that stopped without our knowing is started, once; one whose connections
// were ended by us while it was being dialled is dialled again, once. When its owner stops it
// meanwhile, that is the end: to start it again is for a later call.
func reached[C any](ctx context.Context, sb *Sandbox, progress func(string), dial func(context.Context, sandbox.Instance) (C, error)) (C, error) {
	var none C
	ctx, done := sb.stops.Within(ctx)
	defer done()
	for again := true; ; again = false {
		inst, err := sb.awake(ctx, progress)
		if err != nil {
			return none, err
		}
		unfrozen, over := sb.Within(ctx)
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
			return none, sb.Reach(err)
		}
		if sb.inspect(ctx, inst, err); again && sb.get().State == Stopped {
			continue
		}
		return none, sb.Reach(err)
	}
}
