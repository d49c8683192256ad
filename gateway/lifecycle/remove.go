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

// Removal is what a sandbox that was removed has left behind. The zero value says nothing.
type Removal struct {
	Left string `json:"left,omitempty"` // what was not cleaned up, where the daemon cannot get at it any more, and why
	Hint string `json:"hint,omitempty"` // what to do about that
}

// removals destroy sandboxes, and finish in the background what an engine does not let them do now.
type removals struct{ reg *Registry }

// always removes a sandbox whatever it is.
func always(Record) bool { return true }

// removeIf removes sb if it is still what its remover took it for.
func (r removals) removeIf(ctx context.Context, sb *Sandbox, still func(Record) bool) (Removal, error) {
	if err := sb.lock(ctx); err != nil {
		return Removal{}, err
	}
	defer sb.unlock()
	if sb.isGone() || !still(sb.get()) {
		return Removal{}, nil
	}
	reg := r.reg
	if err := sb.become(ctx, func(f *Record) { f.State, f.Reason = Deleting, "" }); err != nil {
		return Removal{}, err
	}
	sb.doom(wire.LostRemoved)
	reg.unname(sb)
	clean, cancel := context.WithTimeout(ctx, cleanup)
	defer cancel()
	left, err := r.destroy(clean, sb)
	if err != nil {
		r.later(sb)
		if errors.Is(err, errUnsure) { // what there is has gone
			return left, nil
		}
		return Removal{}, sb.Reach(err)
	}
	return left, nil
}

// destroy ends all that there is of a sandbox: its connections, its instance, its records, its row.
// Each step may be repeated. Without an error the sandbox is gone.
func (r removals) destroy(ctx context.Context, sb *Sandbox) (left Removal, err error) {
	reg := r.reg
	sb.guest.letGo(ErrUnknown)
	f := sb.get()
	be, err := reg.options.backend(f.Instance.Backend)
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
	if err := r.erase(ctx, sb); err != nil {
		return left, err
	}
	sb.vanish()
	reg.unregister(sb)
	return left, nil
}

// errUnsure says that there may be something to remove yet.
var errUnsure = errors.New("removal: the backend was asked for it by somebody who gave up, and may be about to make it")

// doubt makes the removal of sb look again for a while: a request whose caller has died, or stopped
// waiting, is carried out all the same, perhaps after somebody looked whether it was. sb is locked,
// or not used yet.
func (r removals) doubt(sb *Sandbox) {
	if be, err := r.reg.options.backend(sb.get().Instance.Backend); err == nil && !isHost(be) { // which makes nothing
		sb.unsure = time.Now().Add(r.reg.options.lateBoot)
	}
}

// erase removes what the daemon itself keeps of a sandbox.
func (r removals) erase(ctx context.Context, sb *Sandbox) error {
	reg := r.reg
	if err := os.RemoveAll(reg.records(sb.id)); err != nil {
		return fmt.Errorf("remove records of sandbox %s: %w", sb.id, err)
	}
	return reg.options.Store.Delete(context.WithoutCancel(ctx), sb.id)
}

// later finishes a removal in the background, as soon as the engine lets us.
func (r removals) later(sb *Sandbox) { r.finishIn(sb, time.Second) }

// laterNow is later without a pause before the first try.
func (r removals) laterNow(sb *Sandbox) { r.finishIn(sb, 0) }

func (r removals) finishIn(sb *Sandbox, pause time.Duration) {
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
				if done = err == nil; !done && ctx.Err() == nil && !errors.Is(err, errUnsure) {
					r.reg.log.Warn("removal waits", "id", sb.id, "err", err)
				}
			}
			sb.unlock()
			if done {
				return
			}
		}
	})
}
