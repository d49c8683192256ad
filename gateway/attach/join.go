package attach

import (
	"context"

	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// JoinOptions say how to join a session.
type JoinOptions struct {
	// Create starts the session if it does not exist, or its shell if that has ended. Without
	// Create or Fresh, no sandbox is started.
	Create bool
	// Typed is for text that a program reads. Then Create starts no sandbox, and no session to
	// replace one that ended with its sandbox.
	Typed bool
	Fresh bool // start a new session with a generated name; the target's session is ignored
	Watch bool // never drive, whatever the rights
	Close bool // closing the attachment ends the session, as for a terminal of its own
	// Size of the joining window for the session, as in Resize. It is also the size of a session
	// that this call starts.
	Cols int
	Rows int
	Term string   // TERM of a session that this call starts
	Bare bool     // a session that this call starts is a plain terminal, as wire.Start.Bare
	Argv []string // a session that this call starts runs this program
	Env  []string // environment of a session that this call starts

	// Changed is called after every change of the session that Live.Generation counts, and after
	// the attachment's end. It must not wait or call the session, because other callers wait for
	// it. It may be nil.
	Changed func()

	shared bool // the attachment of all calls of a principal

	// Progress receives lines for a person while the sandbox starts. It may be nil.
	Progress func(line string)
}

// begin finds or starts the session.
func (a *Attachment) begin(ctx context.Context, c *connect.Control) error {
	drives := a.party.Rights != wire.RightWatch
	l := a.sandbox.Sessions().Get(a.target.Session)
	alive := l != nil && !l.Ended()
	// A person only watches for now. An agent, or a party that starts a session, becomes a party of
	// the guest immediately.
	if a.options.Fresh || drives && a.options.Create && !alive || drives &&
		a.party.Kind == wire.Agent {
		attach := wire.Attach{Session: a.target.Session, Create: a.options.Create,
			Fresh: a.options.Fresh, Start: &wire.Start{
				Argv: a.options.Argv, Env: a.options.Env, Term: a.options.Term, Cols: a.cols,
				Rows: a.rows, Bare: a.options.Bare}}
		if a.party.Kind == wire.Agent && !a.options.Fresh && !a.options.Bare {
			attach.Start.Cols, attach.Start.Rows = 0, 0 // an agent's size is pinned
		}
		begun := func() {}
		if attach.Fresh || attach.Create && !alive {
			var err error
			if begun, err = a.sandbox.MayBegin(); err != nil {
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
		if l, err = a.sandbox.Session(ctx, c, at.Session, at.Created); err != nil {
			return err
		}
		if l.Ended() && at.State.Phase != wire.PhaseDead { // its shell has just been restarted
			if err := l.CaughtUp(ctx, at.Seq); err != nil {
				return a.sandbox.Reach(err)
			}
		}
	} else if !alive {
		var err error
		if l, err = a.sandbox.Session(ctx, c, a.target.Session, false); err != nil {
			return err
		}
	}
	if a.options.Fresh || len(a.options.Argv) > 0 {
		l.Unseen.Store(false) // the party knows what it has started
	}
	a.mu.Lock()
	a.live = l
	a.mu.Unlock()
	leave := l.Join(a)
	a.mu.Lock()
	a.leave = leave
	a.mu.Unlock()
	if a.Err() != nil {
		leave() // disconnected in between
	}
	return a.Err()
}
