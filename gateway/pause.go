package gateway

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Pause freezes all processes of a sandbox where they are. Its sessions and connections stay and
// wait; whoever starts something in it, or joins to drive, resumes it. Pausing what is paused is
// not an error.
func (h *Hub) Pause(ctx context.Context, p Principal, name string) error {
	return h.act(ctx, p, name, "pausing", func(ctx context.Context, b *box, f facts) error {
		if f.state == Paused {
			return nil
		}
		if f.state != Running {
			return &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("sandbox %s is %s: there is nothing to pause", name, f.state)}
		}
		return b.freeze(ctx, f, p.Name)
	})
}

// freeze pauses b, which runs and is locked.
func (b *box) freeze(ctx context.Context, f facts, by string) error {
	be, err := b.hub.backend(f.inst.Backend)
	if err != nil {
		return err
	}
	pauser, ok := be.(sandbox.Pauser)
	if !ok {
		return b.Reach(fmt.Errorf("pause: %w", sandbox.ErrUnsupported))
	}
	b.hub.journal.add(b.id, "pause", map[string]any{"by": by})
	b.hold(true)
	if err := pauser.Pause(ctx, f.inst); err != nil {
		b.hold(false)
		return b.Reach(err)
	}
	return b.become(ctx, func(f *facts) { f.state, f.reason = Paused, "" })
}

// Resume lets a paused sandbox go on. Resuming what runs is not an error.
func (h *Hub) Resume(ctx context.Context, p Principal, name string) error {
	b, err := h.mine(p, name, "resuming")
	if err != nil {
		return err
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	switch f := b.get(); f.state {
	case Running:
		return nil
	case Paused:
		_, err = b.start(ctx, nil)
		return err
	default:
		return &wire.Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("sandbox %s is %s, not paused", name, f.state), Hint: "sandboxd start " + name + " starts it"}
	}
}

// resume is Resume with b locked.
func (b *box) resume(ctx context.Context, be sandbox.Backend, f facts) error {
	pauser, ok := be.(sandbox.Pauser)
	if !ok {
		return b.Reach(fmt.Errorf("resume: %w", sandbox.ErrUnsupported))
	}
	b.hub.journal.add(b.id, "resume", map[string]any{})
	if err := pauser.Resume(ctx, f.inst); err != nil {
		return b.Reach(err)
	}
	b.hold(false)
	if err := b.become(ctx, func(f *facts) { f.state, f.reason = Running, "" }); err != nil {
		return err
	}
	b.keep()
	return nil
}

// hold tells the connections to a sandbox that it is frozen, or goes on: while it is frozen they
// are not taken for dead.
func (b *box) hold(frozen bool) {
	b.mu.Lock()
	lk := b.link
	b.mu.Unlock()
	if lk != nil {
		lk.mu.Lock()
		c := lk.control
		lk.mu.Unlock()
		if c != nil {
			c.Hold(frozen)
		}
	}
	b.relays.hold(frozen)
}

// Wake resumes a sandbox that is paused, for a client that has a connection to it and opens
// something on it.
func (h *Hub) Wake(ctx context.Context, p Principal, name string) error {
	b, _, err := h.reachable(p, name, wire.RightDrive, "commands, files and forwards")
	if err != nil {
		return err
	}
	return b.Wake(ctx)
}

// Wake resumes b if it is paused: somebody is about to do something in it. An error refuses that.
func (b *box) Wake(ctx context.Context) error {
	if err := b.Silence(); err != nil && !b.IsHost() {
		return err
	}
	if b.get().state != Paused {
		return nil
	}
	ctx, done := b.hub.tasks.bound(ctx)
	defer done()
	_, err := b.start(ctx, nil)
	return err
}

// NotRunning is the refusal of those who may not start b: it has no sessions, or none that answer.
func (b *box) NotRunning(session string) error {
	if f := b.get(); f.state == Paused {
		return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.name + " is paused", Hint: "its owner resumes it: sandboxd resume " + f.name}
	}
	e := b.noSession(session)
	if f := b.get(); f.state == Stopped {
		e.Message += ", which is stopped"
		e.Hint = "start it: sandboxd start " + f.name
	}
	return e
}
