package lifecycle

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func noSession(sandbox, session string) *wire.Error {
	return wire.Errorf(wire.CodeNotFound, "no session %s in sandbox %s", session, sandbox)
}

// Records returns the directory of the sandbox's records.
func (sb *Sandbox) Records() string { return sb.reg.records(sb.id) }

// Log adds an event to the sandbox's events; data is marshalled to JSON. It neither blocks nor
// fails; an event that cannot be stored is logged.
func (sb *Sandbox) Log(kind string, data any) { sb.reg.journal.add(sb.id, kind, data) }

// Events returns the sandbox's newest limit events, oldest first.
func (sb *Sandbox) Events(ctx context.Context, limit int) ([]store.Event, error) {
	sb.reg.journal.flush(ctx)
	return sb.reg.options.Store.Events(ctx, sb.id, limit)
}
