package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Pause freezes all processes of a sandbox where they are. Its sessions and connections stay and
// wait; whoever starts something in it, or joins to drive, resumes it. Pausing what is paused is
// not an error.
func (sb *Sandbox) Pause(ctx context.Context, by string) error {
	return sb.act(ctx, func(ctx context.Context, f Record) error {
		if f.State == Paused {
			return nil
		}
		if f.State != Running {
			return &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("sandbox %s is %s: there is nothing to pause", f.Name, f.State)}
		}
		return sb.freeze(ctx, f, by)
	})
}

// freeze pauses sb, which runs and is locked.
func (sb *Sandbox) freeze(ctx context.Context, f Record, by string) error {
	be, err := sb.reg.backend(f.Instance.Backend)
	if err != nil {
		return err
	}
	pauser, ok := be.(sandbox.Pauser)
	if !ok {
		return sb.Reach(fmt.Errorf("pause: %w", sandbox.ErrUnsupported))
	}
	sb.reg.journal.add(sb.id, "pause", map[string]any{"by": by})
	sb.hold(true)
	if err := pauser.Pause(ctx, f.Instance); err != nil {
		sb.hold(false)
		return sb.Reach(err)
	}
	return sb.become(ctx, func(f *Record) { f.State, f.Reason = Paused, "" })
}

// Resume lets a paused sandbox go on. Resuming what runs is not an error.
func (sb *Sandbox) Resume(ctx context.Context) error {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	switch f := sb.get(); f.State {
	case Running:
		return nil
	case Paused:
		_, err := sb.start(ctx, nil)
		return err
	default:
		return &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("sandbox %s is %s, not paused", f.Name, f.State), Hint: "sandboxd start " + f.Name + " starts it"}
	}
}

// resume is Resume with sb locked.
func (sb *Sandbox) resume(ctx context.Context, be sandbox.Backend, f Record) error {
	pauser, ok := be.(sandbox.Pauser)
	if !ok {
		return sb.Reach(fmt.Errorf("resume: %w", sandbox.ErrUnsupported))
	}
	sb.reg.journal.add(sb.id, "resume", map[string]any{})
	if err := pauser.Resume(ctx, f.Instance); err != nil {
		return sb.Reach(err)
	}
	sb.hold(false)
	if err := sb.become(ctx, func(f *Record) { f.State, f.Reason = Running, "" }); err != nil {
		return err
	}
	sb.keep()
	return nil
}

// hold tells the connections to a sandbox that it is frozen, or goes on: while it is frozen they
// are not taken for dead.
func (sb *Sandbox) hold(frozen bool) {
	sb.mu.Lock()
	lk := sb.link
	sb.mu.Unlock()
	if lk != nil {
		lk.mu.Lock()
		c := lk.control
		lk.mu.Unlock()
		if c != nil {
			c.Hold(frozen)
		}
	}
	sb.relays.hold(frozen)
}

// Wake resumes sb if it is paused: somebody is about to do something in it. An error refuses that.
func (sb *Sandbox) Wake(ctx context.Context) error {
	if err := sb.Silence(); err != nil && !sb.IsHost() {
		return err
	}
	if sb.get().State != Paused {
		return nil
	}
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	_, err := sb.start(ctx, nil)
	return err
}

// NotRunning is the refusal of those who may not start sb: it has no sessions, or none that answer.
func (sb *Sandbox) NotRunning(session string) error {
	if f := sb.get(); f.State == Paused {
		return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.Name + " is paused", Hint: "its owner resumes it: sandboxd resume " + f.Name}
	}
	e := sb.noSession(session)
	if f := sb.get(); f.State == Stopped {
		e.Message += ", which is stopped"
		e.Hint = "start it: sandboxd start " + f.Name
	}
	return e
}
