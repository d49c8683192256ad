package gateway

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// JoinOptions say how to join a session.
type JoinOptions struct {
	Create bool     // start the session when it does not exist, and its shell again when that has ended; without it or Fresh no sandbox is started
	Typed  bool     // for text that a program reads: Create starts no sandbox, and no session in the place of one that ended with it
	Fresh  bool     // start a new one with a generated name; the target's session is ignored
	Watch  bool     // never drive, whatever the rights
	Close  bool     // closing the attachment ends the session: a terminal of its own
	Cols   int      // that the joining window has for the session, as in Resize; sizes a session that this call starts
	Rows   int      //
	Term   string   // TERM of a session that this call starts
	Bare   bool     // a session that this call starts is a plain terminal, as wire.Start.Bare
	Argv   []string // a session that this call starts runs this program
	Env    []string // of a session that this call starts

	// Changed is called after every change of the session, which Live.Generation counts, and when the attachment has ended. Callers of
	// anything else wait for it meanwhile, so it must neither wait nor call the session. nil wants to know of none.
	Changed func()

	standing bool // the lasting party of the command table

	// Progress receives lines that a person may want to see while the sandbox starts. nil drops them.
	Progress func(line string)
}

// Join attaches p to a session as a person or, with an agent's key, as a raw agent. Joining takes nothing: the
// attachment watches until it drives. The caller closes it.
func (h *Hub) Join(ctx context.Context, p Principal, t wire.Target, o JoinOptions) (*Attachment, error) {
	kind := p.Kind
	if kind == "" {
		kind = wire.Person
	}
	return h.attach(ctx, p, kind, t, o)
}

func (h *Hub) attach(ctx context.Context, p Principal, kind wire.PartyKind, t wire.Target, o JoinOptions) (*Attachment, error) {
	b, p, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if t.Session == "" {
		t.Session = wire.DefaultSession
	}
	if o.Fresh {
		t.Session = wire.NewSession
	}
	if _, err := wire.ParseLabel("session name", t.Session); err != nil {
		return nil, err
	}
	party := p.party(kind, partyID())
	party.Owner = b.get().owner == p.Name
	if o.Watch {
		party.Rights = wire.RightWatch
	}
	if party.Rights == wire.RightWatch && o.Fresh {
		return nil, p.mayMake("starting sessions")
	}
	ctx, done := h.tasks.bound(ctx)
	defer done()
	c, err := b.controlOf(ctx, party, t.Session, o.Create || o.Fresh, o.Progress)
	if err != nil {
		return nil, err
	}
	a := &Attachment{hub: h, box: b, target: t, party: party, options: o, opening: make(chan struct{}, 1)}
	a.cols, a.rows = terminalFor(o.Cols, o.Rows)
	a.life, a.end = context.WithCancelCause(context.Background())
	ctx, over := b.pauses.within(ctx)
	defer over()
	if err := a.begin(ctx, c); err != nil {
		err = pausedOr(ctx, err)
		a.finish(err)
		return nil, err
	}
	if rights, _ := b.rightsOf(p.Name); rights != wire.RightDrive && rights != a.party.Rights { // that ended meanwhile
		a.finish(ErrUnshared)
		return nil, h.notFound(t.Sandbox)
	}
	return a, nil
}

// begin finds the session, or starts it.
func (a *Attachment) begin(ctx context.Context, c *connect.Control) error {
	drives := a.party.Rights != wire.RightWatch
	l := a.box.sessions.Get(a.target.Session)
	alive := l != nil && !l.Ended()
	// A person only looks on for now. Whoever starts a session, and an agent, is a party of the guest at once.
	if a.options.Fresh || drives && a.options.Create && !alive || drives && a.party.Kind == wire.Agent {
		attach := wire.Attach{Session: a.target.Session, Create: a.options.Create, Fresh: a.options.Fresh, Start: &wire.Start{
			Argv: a.options.Argv, Env: a.options.Env, Term: a.options.Term, Cols: a.cols, Rows: a.rows, Bare: a.options.Bare}}
		if a.party.Kind == wire.Agent && !a.options.Fresh && !a.options.Bare {
			attach.Start.Cols, attach.Start.Rows = 0, 0 // an agent's size is pinned
		}
		begun := func() {}
		if attach.Fresh || attach.Create && !alive {
			var err error
			if begun, err = a.hub.mayBegin(a.box); err != nil {
				return err
			}
		}
		defer begun()
		client, err := a.open(ctx, c, attach)
		if err != nil {
			return err
		}
		at := client.Attached()
		a.target.Session = at.Session
		if l, err = a.box.session(ctx, c, at.Session, at.Created); err != nil {
			return err
		}
		if l.Ended() && at.State.Phase != wire.PhaseDead { // its shell has just been started again
			if err := l.CaughtUp(ctx, at.Seq); err != nil {
				return a.box.reach(err)
			}
		}
	} else if !alive {
		var err error
		if l, err = a.box.session(ctx, c, a.target.Session, false); err != nil {
			return err
		}
	}
	a.mu.Lock()
	a.live = l
	a.mu.Unlock()
	leave := l.Join(a)
	a.mu.Lock()
	a.leave = leave
	a.mu.Unlock()
	if a.Err() != nil {
		leave() // kicked in between
	}
	return a.Err()
}

// partyID tells apart the parties of one principal.
func partyID() string { return strings.ToLower(rand.Text()[:8]) }

// Take gives the keyboard of a session to p's attached person, if there is one, else to its standing agent party.
func (h *Hub) Take(ctx context.Context, p Principal, t wire.Target) (keyboard string, err error) {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return "", err
	}
	if err := a.Take(ctx); err != nil {
		return "", err
	}
	return a.party.String(), nil
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
	return a.party.String(), "", nil
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

// ownParty is the attachment on which a command of p acts: of several persons the one that holds the keyboard, else the
// one that came last. A key that may only watch does not act on the persons who came with another.
func (h *Hub) ownParty(ctx context.Context, p Principal, t wire.Target) (*Attachment, error) {
	b, here, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if l := b.sessions.Get(t.Session); l != nil && here.rights() != wire.RightWatch {
		var found *Attachment
		for _, m := range l.Members() {
			a, ok := m.(*Attachment)
			if ok && a.party.Name == p.Name && a.party.Kind == wire.Person && (found == nil || !found.Holds()) {
				found = a
			}
		}
		if found != nil {
			return found, nil
		}
	}
	return h.Standing(ctx, p, t, JoinOptions{})
}
