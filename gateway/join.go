package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Join attaches p to a session as a person or, with an agent's key, as a raw agent. Joining takes
// nothing: the attachment watches until it drives. The caller closes it.
func (h *Hub) Join(ctx context.Context, p Principal, t wire.Target, o attach.JoinOptions) (*attach.Attachment, error) {
	b, p, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	party := b.partyOf(p, cmp.Or(p.Kind, wire.Person))
	if o.Watch {
		party.Rights = wire.RightWatch
	}
	if party.Rights == wire.RightWatch && o.Fresh {
		return nil, p.mayMake("starting sessions")
	}
	t.Session = cmp.Or(t.Session, wire.DefaultSession)
	return h.attachments.Join(ctx, b, party, t, o)
}

// Shared returns p's shared attachment on a session: all calls of the command table by one
// principal, with the same rights, are one party, however long in between. It is not closed by its
// callers.
func (h *Hub) Shared(ctx context.Context, p Principal, t wire.Target, o attach.JoinOptions) (*attach.Attachment, error) {
	b, p, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	t.Session = cmp.Or(t.Session, wire.DefaultSession)
	if o.Typed { // a shell would run what a program was to read
		l, state := b.sessions.Get(t.Session), b.get().state
		o.Create = o.Create && (l == nil || !l.Ended()) && (state == Running || state == Paused)
	}
	a, err := h.attachments.Shared(ctx, b, b.partyOf(p, wire.Agent), t, o)
	if o.Typed && errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) && !errors.Is(err, ErrUnknown) {
		e := wire.Errorf(wire.CodeUnavailable, "the shell of %s has ended with its sandbox", t)
		e.Hint = "nothing was typed; run starts a new shell"
		return nil, e
	}
	return a, err
}

// partyOf is how p appears on a session of b.
func (b *box) partyOf(p Principal, kind wire.PartyKind) wire.Party {
	party := p.party(kind, partyID())
	party.Owner = b.get().owner == p.Name
	return party
}

// MayStay implements attach.Sandbox.
func (b *box) MayStay(party wire.Party) error {
	if rights, _ := b.rightsOf(party.Name); rights != wire.RightDrive && rights != party.Rights {
		return b.hub.notFound(b.Name())
	}
	return nil
}

// Disconnect ends the attachments of a party, named as Parties lists it, on a session of p. It
// returns how many. They lose the keyboard, and the secrets with which they could resume are worth
// nothing to this daemon any more. Whoever may attach can do so again, as another party.
func (h *Hub) Disconnect(ctx context.Context, p Principal, t wire.Target, party string) (int, error) {
	b, err := h.mine(p, t.Sandbox, "kicking")
	if err != nil {
		return 0, err
	}
	l := b.sessions.Get(t.Session)
	if l == nil {
		return 0, wire.Errorf(wire.CodeNotFound, "no session %s in sandbox %s", t.Session, t.Sandbox)
	}
	n := h.attachments.Disconnect(ctx, b, l, attach.ErrDisconnected, func(m wire.Party) bool { return m.String() == party || m.ID == party })
	if n == 0 {
		e := wire.Errorf(wire.CodeNotFound, "no party %s on %s", oneLine(party, 64), t)
		e.Hint = "sandboxd sessions " + t.Sandbox + " lists them"
		return 0, e
	}
	h.journal.add(b.id, "kick", map[string]any{"by": p.Name, "session": t.Session, "party": party})
	return n, nil
}

// partyID tells apart the parties of one principal.
func partyID() string { return strings.ToLower(rand.Text()[:8]) }

// Take gives the keyboard of a session to p's attached person, if there is one, else to its shared
// attachment.
func (h *Hub) Take(ctx context.Context, p Principal, t wire.Target) (keyboard string, err error) {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return "", err
	}
	if err := a.Take(ctx); err != nil {
		return "", err
	}
	return a.Party().String(), nil
}

// Ask is Take, but asks a holder from whom it cannot be taken; asked is who that is then.
func (h *Hub) Ask(ctx context.Context, p Principal, t wire.Target) (keyboard, asked string, err error) {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return "", "", err
	}
	if asked, err = a.Ask(ctx); err != nil {
		return "", "", err
	}
	if asked != "" {
		return asked, asked, nil
	}
	return a.Party().String(), "", nil
}

// Keep keeps it, and says so to whoever has asked for it.
func (h *Hub) Keep(ctx context.Context, p Principal, t wire.Target) (keyboard string, err error) {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return "", err
	}
	if err := a.Keep(ctx); err != nil {
		return "", err
	}
	return a.Live().Keyboard(), nil
}

// Give gives it back. Giving what one does not hold is not an error.
func (h *Hub) Give(ctx context.Context, p Principal, t wire.Target) (keyboard string, err error) {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return "", err
	}
	if err := a.Give(ctx); err != nil {
		return "", err
	}
	return a.Live().Keyboard(), nil
}

// ownParty is the attachment on which a command of p acts: of several persons the one that holds
// the keyboard, else the one that came last. A key that may only watch does not act on the persons
// who came with another.
func (h *Hub) ownParty(ctx context.Context, p Principal, t wire.Target) (*attach.Attachment, error) {
	b, here, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if l := b.sessions.Get(t.Session); l != nil && here.rights() != wire.RightWatch {
		var found *attach.Attachment
		for _, m := range l.Members() {
			a, ok := m.(*attach.Attachment)
			if ok && a.Party().Name == p.Name && a.Party().Kind == wire.Person && (found == nil || !found.Holds()) {
				found = a
			}
		}
		if found != nil {
			return found, nil
		}
	}
	return h.Shared(ctx, p, t, attach.JoinOptions{})
}

// Private begins or ends a private mode on the person that p has attached to a session.
func (h *Hub) Private(ctx context.Context, p Principal, t wire.Target, on bool) error {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return err
	}
	if a.Party().Kind != wire.Person {
		e := wire.Errorf(wire.CodeUnavailable, "you have no terminal on %s to be private in", t)
		e.Hint = "join it by ssh first"
		return e
	}
	return a.Private(ctx, on)
}
