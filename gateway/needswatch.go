package gateway

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// needsPace is the least time between two tellings of one watch. What came and went in between is not told.
const needsPace = 100 * time.Millisecond

// NeedsWatch follows what sessions need. While there is one, the guests of the sandboxes that it follows look after sessions
// for which nobody waits, too. It is not safe for concurrent use.
type NeedsWatch struct {
	hub       *Hub
	principal string
	all       bool // follows everybody's; principal is empty
	seen      uint64
	last      time.Time
	told      map[needKey]told
}

type needKey struct{ box, session string }

type told struct {
	need
	sandbox, owner string
}

// WatchNeeds follows the sessions of p, and those of sandboxes that are shared with it. The caller closes the watch.
func (h *Hub) WatchNeeds(p Principal) *NeedsWatch { return h.watchNeeds(p.Name, false) }

func (h *Hub) watchNeeds(principal string, all bool) *NeedsWatch {
	h.needs.watch(principal, 1)
	return &NeedsWatch{hub: h, principal: principal, all: all, told: make(map[needKey]told)}
}

// Close ends the watch.
func (w *NeedsWatch) Close() { w.hub.needs.watch(w.principal, -1) }

// Wait returns once sandboxes, sessions or what they need may have changed since it last returned, the first time at once; else
// ctx's cause. It returns at most ten times a second.
func (w *NeedsWatch) Wait(ctx context.Context) error {
	ctx, done := w.hub.tasks.bound(ctx)
	defer done()
	if pause := needsPace - time.Since(w.last); !w.last.IsZero() && pause > 0 && !sleep(ctx, pause) {
		return context.Cause(ctx)
	}
	now, wait := w.hub.needs.since(w.seen)
	for wait != nil && !w.last.IsZero() {
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, wait = w.hub.needs.since(w.seen)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.seen, w.last = now, time.Now()
	return nil
}

// Next waits until what sessions need has changed since the last call, and returns those that did, by sandbox and session: the
// first time all that there are. One whose sandbox is no longer shared is told as gone. A change of want, phase or keyboard
// counts, one of the last line does not.
func (w *NeedsWatch) Next(ctx context.Context) ([]Need, error) {
	for {
		if err := w.Wait(ctx); err != nil {
			return nil, err
		}
		if changed := w.changed(); len(changed) > 0 {
			return changed, nil
		}
	}
}

// changed compares what there is with what was told.
func (w *NeedsWatch) changed() []Need {
	var changed []Need
	now := make(map[needKey]told, len(w.told))
	for _, b := range w.hub.all() {
		f := b.get()
		if rights, _ := b.rightsOf(w.principal); f.isPooled() || !w.all && rights == "" {
			continue
		}
		for _, l := range b.allLives() {
			if l.final() {
				continue
			}
			l.mu.Lock()
			t := told{l.need, f.name, f.owner}
			l.mu.Unlock()
			key := needKey{b.id, l.name}
			now[key] = t
			if before, known := w.told[key]; !known || before != t {
				changed = append(changed, l.needed())
			}
		}
	}
	for key, t := range w.told {
		if _, still := now[key]; !still {
			changed = append(changed, Need{Sandbox: t.sandbox, Session: key.session, Since: time.Now(), Phase: wire.PhaseDead, Gone: true, owner: t.owner, box: key.box})
		}
	}
	w.told = now
	sortNeeds(changed)
	return changed
}
