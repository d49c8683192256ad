package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ListSessions asks the guest of a sandbox that runs for its sessions, and adds the parties that are
// attached through the daemon. A sandbox that does not run has none, and is not started.
func (sb *Sandbox) ListSessions(ctx context.Context) ([]wire.SessionInfo, error) {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	f := sb.get()
	switch f.State {
	case Running:
	case Paused: // as they were
		return sb.Info().Sessions, nil
	default:
		return []wire.SessionInfo{}, nil
	}
	ctx, over := sb.Within(ctx)
	defer over()
	c, err := sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return nil, sb.Reach(err)
	}
	infos, err := live.List(ctx, c)
	if err != nil {
		return nil, sb.Reach(err)
	}
	sb.mu.Lock()
	lk := sb.link
	sb.mu.Unlock()
	for i := range infos {
		infos[i].Parties = []wire.Party{}
		if lk == nil {
			continue
		}
		if l, err := lk.take(sb, c, infos[i]); err == nil {
			infos[i].Parties = l.Parties()
		}
	}
	slices.SortFunc(infos, func(a, b wire.SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// CloseSession ends a session and its processes. Its record stays.
func (sb *Sandbox) CloseSession(ctx context.Context, session string) error {
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	f := sb.get()
	if f.State != Running {
		return sb.NotRunning(session)
	}
	ctx, over := sb.Within(ctx)
	defer over()
	c, err := sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return sb.Reach(err)
	}
	_, err = live.Ask(ctx, c, wire.Request{Verb: wire.VerbClose, Session: session})
	if errors.As(err, new(*wire.Error)) {
		return err
	}
	return sb.Reach(err)
}

// Live returns the replica of a session for reading, without attaching anybody. A sandbox that does
// not run is not started: its sessions are records.
func (sb *Sandbox) Live(ctx context.Context, session string) (*live.Session, error) {
	if l := sb.sessions.Get(session); l != nil {
		return l, nil
	}
	ctx, done := sb.reg.tasks.bound(ctx)
	defer done()
	f := sb.get()
	if f.State != Running {
		return nil, sb.NotRunning(session)
	}
	ctx, over := sb.Within(ctx)
	defer over()
	c, err := sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return nil, sb.Reach(err)
	}
	return sb.Session(ctx, c, session, false)
}

func (sb *Sandbox) noSession(session string) *wire.Error {
	return wire.Errorf(wire.CodeNotFound, "no session %s in sandbox %s", session, sb.Name())
}

// Records is the directory of the sandbox's records.
func (sb *Sandbox) Records() string { return sb.reg.records(sb.id) }

// Log adds an event of that kind to the sandbox's events; data is marshalled. It neither waits nor
// fails: what cannot be stored is logged.
func (sb *Sandbox) Log(kind string, data any) { sb.reg.journal.add(sb.id, kind, data) }

// Events returns its newest limit events, oldest first.
func (sb *Sandbox) Events(ctx context.Context, limit int) ([]store.Event, error) {
	sb.reg.journal.flush(ctx)
	return sb.reg.options.Store.Events(ctx, sb.id, limit)
}
