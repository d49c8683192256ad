package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Removal is what a removed sandbox left behind. The zero value means nothing.
type Removal struct {
	// What was not cleaned up because the daemon cannot reach it, and why.
	Left string `json:"left,omitempty"`
	Hint string `json:"hint,omitempty"` // how to clean it up
}

// removals destroy sandboxes, and retry in the background what an engine cannot do now.
type removals struct{ reg *Registry }

// always accepts any record.
func always(Record) bool { return true }

// removeIf removes sb if due accepts its record once the act has begun.
func (r removals) removeIf(ctx context.Context, sb *Sandbox,
	due func(Record) bool) (Removal, error) {
	if err := sb.lock(ctx); err != nil {
		return Removal{}, err
	}
	defer sb.unlock()
	if sb.isGone() || !due(sb.get()) {
		return Removal{}, nil
	}
	reg := r.reg
	if err := sb.transition(ctx, func(f *Record) { f.State, f.Reason = Deleting, "" }); err != nil {
		return Removal{}, err
	}
	sb.setEndReason(wire.LostRemoved)
	reg.roster.unname(sb)
	clean, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	left, err := r.destroy(clean, sb)
	if err != nil {
		r.retryLater(sb)
		if errors.Is(err, errUncertain) { // what exists now is gone
			return left, nil
		}
		return Removal{}, sb.Reach(err)
	}
	return left, nil
}

// destroy removes a sandbox's connections, instance, records and row. It may be repeated. Without
// an error the sandbox is gone.
func (r removals) destroy(ctx context.Context, sb *Sandbox) (left Removal, err error) {
	reg := r.reg
	sb.guest.disconnect(ErrUnknown)
	f := sb.get()
	be, err := reg.options.backend(f.Instance.Backend)
	if err != nil {
		return left, err
	}
	inst := f.Instance
	inst.ID = sb.id // after a crash in Boot the engine may have an instance that the store has not
	err = be.Destroy(ctx, inst)
	if e, ok := errors.AsType[*sandbox.LeftError](err); ok {
		left = Removal{Left: firstLine(e), Hint: oneLine(e.Hint, 300)}
		reg.log.Warn("sandbox removed, but not cleaned up", "id", sb.id, "err", e)
	} else if err != nil {
		return left, fmt.Errorf("removal: %w", err)
	}
	if time.Now().Before(sb.uncertainUntil) {
		return left, errUncertain
	}
	if err := r.erase(ctx, sb); err != nil {
		return left, err
	}
	sb.setGone()
	reg.unregister(sb)
	return left, nil
}

// errUncertain means that the backend may still create the instance.
var errUncertain = errors.New("removal: an abandoned request may still create the instance")

// markUncertain makes the removal of sb repeat for a while. The engine carries out a request even
// if its caller has died or given up, perhaps only after a first removal. sb is locked, or not in
// use yet.
func (r removals) markUncertain(sb *Sandbox) {
	// Hosts create nothing.
	if be, err := r.reg.options.backend(sb.get().Instance.Backend); err == nil && !isHost(be) {
		sb.uncertainUntil = time.Now().Add(r.reg.options.lateBoot)
	}
}

// erase removes the daemon's own data of a sandbox.
func (r removals) erase(ctx context.Context, sb *Sandbox) error {
	reg := r.reg
	if err := os.RemoveAll(reg.records(sb.id)); err != nil {
		return fmt.Errorf("remove records of sandbox %s: %w", sb.id, err)
	}
	return reg.options.Store.Delete(context.WithoutCancel(ctx), sb.id)
}

// retryLater retries a removal in the background, first after a second.
func (r removals) retryLater(sb *Sandbox) { r.retryIn(sb, time.Second) }

// retryNow retries a removal in the background, first without a pause.
func (r removals) retryNow(sb *Sandbox) { r.retryIn(sb, 0) }

// retryIn retries a removal in the background, first after pause.
func (r removals) retryIn(sb *Sandbox, pause time.Duration) {
	r.reg.tasks.start(func(ctx context.Context) {
		for ; ; pause = min(max(2*pause, time.Second), time.Minute) {
			if !sleep(ctx, pause) || sb.lock(ctx) != nil {
				return
			}
			done := sb.isGone()
			if !done {
				clean, cancel := context.WithTimeout(ctx, cleanup)
				_, err := r.destroy(clean, sb)
				cancel()
				if done = err == nil; !done && ctx.Err() == nil && !errors.Is(err, errUncertain) {
					r.reg.log.Warn("removal failed, will retry", "id", sb.id, "err", err)
				}
			}
			sb.unlock()
			if done {
				return
			}
		}
	})
}
