package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// reachWithin bounds how long a caller waits for a running sandbox to answer.
const reachWithin = 15 * time.Second

// Remove destroys the sandbox, its files and its records, and aborts a creation under way. The
// removal continues when ctx ends first. If the engine does not answer, the daemon retries.
func (sb *Sandbox) Remove(ctx context.Context) (Removal, error) {
	sb.abortAct(errRemoved)
	type end struct {
		r   Removal
		err error
	}
	result := make(chan end, 1)
	if !sb.reg.tasks.start(func(ctx context.Context) {
		r, err := sb.reg.removals.removeIf(ctx, sb, always)
		result <- end{r, err}
	}) {
		return Removal{}, ErrClosed
	}
	select {
	case e := <-result:
		return e.r, e.err
	case <-ctx.Done():
		return Removal{}, context.Cause(ctx)
	}
}

// sleep waits for d and reports whether ctx is still alive.
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

// Stop ends all processes of the sandbox and keeps its files. Stopping a stopped sandbox is not an
// error.
func (sb *Sandbox) Stop(ctx context.Context, by string) error {
	return sb.act(ctx, func(ctx context.Context, f Record) error {
		stopped := stoppedError(sb.Name())
		sb.guest.stops.Interrupt(stopped)
		if f.State == Stopped {
			return nil
		}
		sb.reg.journal.add(sb.id, "stop", map[string]any{"by": by})
		err := sb.halt(ctx, f, "")
		if err == nil {
			// Calls that came meanwhile have found it running.
			sb.guest.stops.Interrupt(stopped)
		}
		return err
	})
}

// act calls do while no other act on the sandbox is under way. The error has code not_found if the
// sandbox is being removed.
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

// halt stops sb, which is locked. why becomes its Reason.
func (sb *Sandbox) halt(ctx context.Context, f Record, why string) error {
	reg := sb.reg
	be, err := reg.options.backend(f.Instance.Backend)
	if err != nil {
		return err
	}
	stopper, ok := be.(sandbox.Lifecycle)
	if !ok {
		return sb.Reach(fmt.Errorf("stop: %w", sandbox.ErrUnsupported))
	}
	sb.setEndReason(wire.LostStopped)
	if err := stopper.Stop(ctx, f.Instance, reg.options.StopGrace); err != nil &&
		!errors.Is(err, sandbox.ErrStopped) {
		sb.setEndReason("")
		return sb.Reach(fmt.Errorf("stop sandbox %s: %w", sb.id, err))
	}
	sb.guest.hold(false)
	sb.guest.disconnect(errors.New("stopped"))
	defer reg.pooled.Check() // there may be room for another pooled sandbox
	return sb.transition(ctx, func(f *Record) { f.State, f.Reason, f.Held = Stopped, why, false })
}

// Start starts a stopped, broken or lost sandbox with its files for the principal by, and resumes a
// paused one. Starting a running sandbox is not an error.
func (sb *Sandbox) Start(ctx context.Context, by string,
	progress func(line string)) (Info, error) {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	if f := sb.get(); f.State == Running {
		sb.guest.inspect(ctx, f.Instance, nil) // it may just have ended
	}
	if _, err := sb.start(ctx, by, progress); err != nil {
		return Info{}, err
	}
	return sb.Info(), nil
}

// start returns the running instance, which it starts for by if necessary.
func (sb *Sandbox) start(ctx context.Context, by string,
	progress func(string)) (sandbox.Instance, error) {
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
	be, err := reg.options.backend(f.Instance.Backend)
	if err != nil {
		return sandbox.Instance{}, err
	}
	if isHost(be) {
		return sb.guest.tryAgain(ctx, f.Instance)
	}
	if f.State == Paused {
		if progress != nil {
			progress("resuming " + f.Name)
		}
		return f.Instance, sb.resume(ctx, be, f, by)
	}
	stopper, ok := be.(sandbox.Lifecycle)
	if !ok {
		return sandbox.Instance{}, sb.Reach(fmt.Errorf("start: %w", sandbox.ErrUnsupported))
	}
	if err := reg.roomToRun(ctx, be); err != nil {
		return sandbox.Instance{}, err
	}
	started, err := reg.accounts.mayStart(sb)
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
	reg.journal.add(sb.id, "start", map[string]any{"by": by})
	sb.guest.disconnect(errors.New("restarted"))
	sb.measureExcess(ctx, be, f)
	if err := sb.network.bindSecrets(ctx); err != nil { // before a program reads the authorities
		reg.log.Warn("secrets of a sandbox cannot be used", "id", sb.id, "err", err)
	}
	inst, err := stopper.Start(ctx, f.Instance)
	if err != nil {
		if errors.Is(err, sandbox.ErrGone) {
			sb.observed(ctx, Broken, "gone: removed outside the daemon")
			return sandbox.Instance{}, sb.Reach(err)
		}
		return sandbox.Instance{}, sb.bootError("start", err)
	}
	inst.Backend = f.Instance.Backend
	reg.nameStarted(ctx, f, inst)
	if err := sb.transition(ctx, func(f *Record) {
		f.Instance, f.State, f.Reason = inst, Running, ""
	}); err != nil {
		return sandbox.Instance{}, err
	}
	sb.guest.connect()
	return inst, nil
}

// ensureRunning returns the running instance. It waits for a creation, and starts or resumes the
// sandbox for by if necessary and possible: a held one is not resumed.
func (sb *Sandbox) ensureRunning(ctx context.Context, by string,
	progress func(string)) (sandbox.Instance, error) {
	switch f := sb.get(); f.State {
	case Running:
		return f.Instance, nil
	case Broken:
		// It may answer again: the caller dials it. Only its owner restarts it.
		if f.Instance.ID != "" {
			return f.Instance, nil
		}
	case Paused:
		if err := f.mayResume(); err != nil {
			return sandbox.Instance{}, err
		}
	}
	return sb.start(ctx, by, progress)
}

// Rescue kills every process of the sandbox except its guest, and returns how many. Files stay.
func (sb *Sandbox) Rescue(ctx context.Context, by string) (killed int, err error) {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	c, err := sb.guest.control(ctx, by, nil)
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
