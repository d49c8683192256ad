package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Join attaches p to a session, as a person or, with an agent's key, as an agent on a raw terminal.
// The attachment watches until it asks to drive. The caller closes it.
func (s *Sessions) Join(ctx context.Context, p Principal, t wire.Target,
	o attach.JoinOptions) (*attach.Attachment, error) {
	sb, here, err := s.hub.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	party := partyOf(sb, here, cmp.Or(p.Kind, wire.Person))
	if o.Watch {
		party.Rights = wire.RightWatch
	}
	if party.Rights == wire.RightWatch && o.Fresh {
		if err := s.mayStart(p, t.Sandbox); err != nil {
			return nil, err
		}
		return nil, wire.Errorf(wire.CodeUsage, "a party that only watches starts no session")
	}
	t.Session = cmp.Or(t.Session, wire.DefaultSession)
	return s.hub.attachments.Join(ctx, sb.Guest(), party, t, o)
}

// Shared returns p's shared attachment to a session: all of p's calls through the command table
// with the same rights act as one party. Callers do not close it.
func (s *Sessions) Shared(ctx context.Context, p Principal, t wire.Target,
	o attach.JoinOptions) (*attach.Attachment, error) {
	sb, here, err := s.hub.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	t.Session = cmp.Or(t.Session, wire.DefaultSession)
	if o.Typed { // a new shell would run as a command what a program was to read
		// A session that is known may have ended unnoticed: it exists, or it is not created.
		l, state := sb.Sessions().Get(t.Session), sb.State()
		o.Create = o.Create && l == nil && (state == lifecycle.Running || state == lifecycle.Paused)
	}
	a, err := s.hub.attachments.Shared(ctx, sb.Guest(), partyOf(sb, here, wire.Agent), t, o)
	if o.Create && here.rights() == wire.RightWatch &&
		errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
		return nil, s.mayStart(p, t.Sandbox)
	}
	if o.Typed && errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) &&
		!errors.Is(err, lifecycle.ErrUnknown) {
		e := wire.Errorf(wire.CodeUnavailable, "the shell of %s has ended with its sandbox", t)
		e.Hint = "nothing was typed; run starts a new shell"
		return nil, e
	}
	return a, err
}

// mayStart returns an error with code denied if p may only watch the sandbox called name.
func (s *Sessions) mayStart(p Principal, name string) error {
	if err := p.mayMake("starting sessions"); err != nil {
		return err
	}
	_, _, err := s.hub.reachable(p, name, wire.RightDrive, "starting sessions")
	return err
}

// partyOf returns the party that p is on a session of sb.
func partyOf(sb *lifecycle.Sandbox, p Principal, kind wire.PartyKind) wire.Party {
	party := p.party(kind, partyID())
	party.Owner = sb.Owner() == p.Name
	return party
}

// Disconnect ends the attachments of a party to a session of p's sandbox and returns how many.
// party is a name as Parties lists it, or an ID. The party loses the keyboard, and this daemon
// rejects its resume secrets. It may attach again as another party.
func (s *Sessions) Disconnect(ctx context.Context, p Principal, t wire.Target,
	party string) (int, error) {
	sb, err := s.hub.mine(p, t.Sandbox, "disconnecting parties")
	if err != nil {
		return 0, err
	}
	l := sb.Sessions().Get(t.Session)
	if l == nil {
		return 0, wire.Errorf(wire.CodeNotFound, "no session %s in sandbox %s", t.Session,
			t.Sandbox)
	}
	n := s.hub.attachments.Disconnect(ctx, sb.Guest(), l, interrupt.ErrDisconnected,
		func(m wire.Party) bool { return m.String() == party || m.ID == party })
	if n == 0 {
		e := wire.Errorf(wire.CodeNotFound, "no party %s on %s", oneLine(party, 64), t)
		e.Hint = "sandboxd sessions " + t.Sandbox + " lists them"
		return 0, e
	}
	sb.Log("kick", map[string]any{"by": p.Name, "session": t.Session, "party": party})
	return n, nil
}

// partyID returns an ID that tells apart the parties of one principal.
func partyID() string { return strings.ToLower(rand.Text()[:8]) }

// Own returns the attachment on which a command of p acts: the person of p's who holds the
// keyboard, else the person who joined last, else p's shared attachment. A read-only key does not
// act for persons who logged in with another key.
func (s *Sessions) Own(ctx context.Context, p Principal,
	t wire.Target) (*attach.Attachment, error) {
	sb, here, err := s.hub.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if l := sb.Sessions().Get(t.Session); l != nil && here.rights() != wire.RightWatch {
		var found *attach.Attachment
		for _, m := range l.Members() {
			a, ok := m.(*attach.Attachment)
			if ok && a.Party().Name == p.Name && a.Party().Kind == wire.Person &&
				(found == nil || !found.Holds()) {
				found = a
			}
		}
		if found != nil {
			return found, nil
		}
	}
	return s.Shared(ctx, p, t, attach.JoinOptions{})
}

// Private begins or ends private mode for the person whom p has attached to a session.
func (s *Sessions) Private(ctx context.Context, p Principal, t wire.Target, on bool) error {
	a, err := s.Own(ctx, p, t)
	if err != nil {
		return err
	}
	if a.Party().Kind != wire.Person {
		e := wire.Errorf(wire.CodeUnavailable, "private mode: you have no terminal on %s", t)
		e.Hint = "join it by ssh first"
		return e
	}
	return a.Private(ctx, on)
}
