package attention

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// pace is the minimum time between two returns of Wait. Changes that are undone in between are not
// reported.
const pace = 100 * time.Millisecond

// Watch follows the needs of sessions. While it is open, the guests of its sandboxes monitor also
// sessions for which no call waits. It is not safe for concurrent use.
type Watch struct {
	board     *Board
	principal string // empty follows all sessions
	seen      uint64
	last      time.Time
	reported  map[key]report
}

type key struct{ id, session string }

type report struct {
	Brief
	sandbox, owner string
	drives         bool
}

// Watch follows the sessions that principal may see; all sessions if it is empty. The caller closes
// the result.
func (b *Board) Watch(principal string) *Watch {
	b.count(principal, 1)
	return &Watch{board: b, principal: principal, reported: make(map[key]report)}
}

// Close ends the watch.
func (w *Watch) Close() { w.board.count(w.principal, -1) }

// Wait returns once sandboxes, sessions or their needs may have changed since its last return, the
// first time immediately. It returns at most ten times a second. Its error is the cause of ctx or
// of the board's end.
func (w *Watch) Wait(ctx context.Context) error {
	if rest := pace - time.Since(w.last); !w.last.IsZero() && rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	now, wait, err := w.board.since(w.seen)
	for wait != nil && !w.last.IsZero() {
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, wait, err = w.board.since(w.seen)
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.seen, w.last = now, time.Now()
	return nil
}

// Next waits for changes of needs since the last call and returns them, by sandbox and session; the
// first time it returns all sessions. It reports a session whose sandbox is no longer shared as
// gone. A change of want, phase, keyboard or watched counts; one of the last line does not.
func (w *Watch) Next(ctx context.Context) ([]Need, error) {
	for {
		if err := w.Wait(ctx); err != nil {
			return nil, err
		}
		if changed := w.changed(); len(changed) > 0 {
			return changed, nil
		}
	}
}

// changed compares the current sessions with those that were reported.
func (w *Watch) changed() []Need {
	var changed []Need
	now := make(map[key]report, len(w.reported))
	for _, s := range w.board.source(w.principal) {
		k, r := key{s.ID, s.Name}, report{s.Brief, s.Sandbox, s.Owner, s.Drives}
		now[k] = r
		if before, known := w.reported[k]; !known || before != r {
			changed = append(changed, s.need())
		}
	}
	for k, r := range w.reported {
		if _, still := now[k]; !still {
			changed = append(changed, Need{Sandbox: r.sandbox, Session: k.session,
				Since: time.Now(),
				Phase: wire.PhaseDead, Gone: true, owner: r.owner, id: k.id})
		}
	}
	w.reported = now
	sortNeeds(changed)
	return changed
}
