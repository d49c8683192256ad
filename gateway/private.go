package gateway

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Private begins or ends a private stretch: from then on what the terminal shows is for this person alone, until the keyboard
// is given back. It needs the keyboard, or a free one, which it takes.
func (a *Attachment) Private(ctx context.Context, on bool) error {
	if err := a.mayDrive(); err != nil {
		return err
	}
	if _, err := a.Request(ctx, wire.Request{Verb: wire.VerbPrivate, On: on}); err != nil {
		return err
	}
	if on {
		a.took()
	}
	return nil
}

// Screen is the session's screen, but in private mode of the attachment's own what this person alone sees.
func (a *Attachment) Screen(f func(s *screen.Screen, offset uint64)) error {
	return a.secret.Screen(a.live, f)
}

// secretOutput takes output that the guest sends to this party alone.
func (a *Attachment) secretOutput(off uint64, p []byte) {
	a.mu.Lock()
	l := a.live
	a.mu.Unlock()
	if l != nil {
		a.secret.Output(a.life, l, off, p)
	}
}

// Situation is how the session stands for the party.
func (a *Attachment) Situation() live.Situation {
	s := a.live.Situation(a.party)
	if ttl := a.box.get().life.TTL; ttl > 0 && a.box.working() == "" {
		s.Idle = ttl
	}
	return s
}

// Private begins or ends a private stretch on the person that p has attached to a session.
func (h *Hub) Private(ctx context.Context, p Principal, t wire.Target, on bool) error {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return err
	}
	if a.party.Kind != wire.Person {
		e := wire.Errorf(wire.CodeUnavailable, "you have no terminal on %s to be private in", t)
		e.Hint = "join it by ssh first"
		return e
	}
	return a.Private(ctx, on)
}
