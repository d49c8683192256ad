package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Pause freezes all processes of the sandbox. Sessions and connections stay open and wait. A party
// that starts something in it or joins to drive resumes it, or is rejected with hold. Pausing a
// paused sandbox is not an error; with hold it is held from then on.
func (sb *Sandbox) Pause(ctx context.Context, by string, hold bool) error {
	return sb.act(ctx, func(ctx context.Context, f Record) error {
		if f.State == Paused {
			if !hold || f.Held {
				return nil
			}
			return sb.transition(ctx, func(f *Record) { f.Held = true })
		}
		if f.State != Running {
			return &wire.Error{Code: wire.CodeUnavailable,
				Message: fmt.Sprintf("sandbox %s is %s: only a running sandbox can be paused",
					f.Name, f.State)}
		}
		return sb.pause(ctx, f, by, hold)
	})
}

// mayResume returns an error if f is paused and held, for what resumes a sandbox as a side effect.
func (f Record) mayResume() error {
	if f.State != Paused || !f.Held {
		return nil
	}
	return &wire.Error{Code: wire.CodeUnavailable,
		Message: "sandbox " + f.Name + " is paused until a user resumes it",
		Hint:    "resume it: sandboxd resume " + f.Name}
}

// pause pauses sb, which runs and is locked.
func (sb *Sandbox) pause(ctx context.Context, f Record, by string, hold bool) error {
	be, err := sb.reg.options.backend(f.Instance.Backend)
	if err != nil {
		return err
	}
	pauser, ok := be.(sandbox.Pauser)
	if !ok {
		return sb.Reach(fmt.Errorf("pause: %w", sandbox.ErrUnsupported))
	}
	sb.reg.journal.add(sb.id, "pause", map[string]any{"by": by})
	sb.guest.hold(true)
	if err := pauser.Pause(ctx, f.Instance); err != nil {
		sb.guest.hold(false)
		return sb.Reach(err)
	}
	return sb.transition(ctx, func(f *Record) {
		f.State, f.Reason, f.Held = Paused, "", hold
	})
}

// Resume unfreezes a paused sandbox for the principal by. Resuming a running one is not an error.
func (sb *Sandbox) Resume(ctx context.Context, by string) error {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	switch f := sb.get(); f.State {
	case Running:
		return nil
	case Paused:
		_, err := sb.start(ctx, by, nil)
		return err
	default:
		return &wire.Error{Code: wire.CodeUnavailable,
			Message: fmt.Sprintf("sandbox %s is %s, not paused", f.Name, f.State),
			Hint:    "start it: sandboxd start " + f.Name}
	}
}

// resume is Resume with sb locked.
func (sb *Sandbox) resume(ctx context.Context, be sandbox.Backend, f Record, by string) error {
	pauser, ok := be.(sandbox.Pauser)
	if !ok {
		return sb.Reach(fmt.Errorf("resume: %w", sandbox.ErrUnsupported))
	}
	sb.reg.journal.add(sb.id, "resume", map[string]any{"by": by})
	if err := pauser.Resume(ctx, f.Instance); err != nil {
		return sb.Reach(err)
	}
	sb.guest.hold(false)
	if err := sb.transition(ctx, func(f *Record) {
		f.State, f.Reason, f.Held = Running, "", false
	}); err != nil {
		return err
	}
	sb.guest.connect()
	return nil
}

// hold marks the connections to a sandbox as frozen or not. A frozen one does not time out.
func (g *Guest) hold(frozen bool) {
	g.mu.Lock()
	lk := g.link
	g.mu.Unlock()
	if lk != nil {
		lk.mu.Lock()
		c := lk.control
		lk.mu.Unlock()
		if c != nil {
			c.Hold(frozen)
		}
	}
	g.relays.hold(frozen)
}
