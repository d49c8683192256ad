package gateway

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	firstLook = 2 * time.Second // how long Ready waits for backends
	relist    = 10 * time.Second
	lateBoot  = 30 * time.Second // after which what a backend was asked for is there or will not be
)

// sweeps are the pauses before each of the sweeps of a young daemon.
var sweeps = []time.Duration{0, time.Second, 4 * time.Second, 15 * time.Second, 40 * time.Second, 2 * time.Minute}

// sweep has a backend remove what calls of an earlier daemon left, and what the engine still makes
// of them.
func (h *Hub) sweep(ctx context.Context, name string, s sandbox.Finder) {
	for _, pause := range sweeps {
		if !sleep(ctx, pause) {
			return
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("something of an earlier daemon may be left", "backend", name, "err", err)
		}
	}
}

// recover takes up every sandbox where a former daemon left it. Creations that were cut short are
// undone and removals finished; the rest is kept in touch with. Then the backends are asked for
// what the store does not know.
func (h *Hub) recover(ctx context.Context) {
	revised := &revisions{h, make(map[string]bool)}
	for _, b := range h.all() {
		switch f := b.get(); f.state {
		case Creating:
			// Nobody waits for it any more, and how far it got only the engine knows.
			if err := b.become(ctx, func(f *facts) { f.state, f.reason = Deleting, "its creation was cut short" }); err != nil {
				h.log.Error("creation not undone", "id", b.id, "err", err)
				continue
			}
			h.unname(b)
			b.doubt()
			h.laterNow(b)
		case Deleting:
			if f.inst.ID == "" { // the same, by a daemon that was cut short in turn
				b.doubt()
			}
			h.laterNow(b)
		case Running, Broken, Paused:
			if f.reason == copied {
				h.tasks.start(b.goOn)
			}
			b.keep()
		case Warm:
			h.unnote(b.id) // of a claim that was cut short
			why := "the daemon is configured without it"
			if revised.differ(ctx, f) {
				why = madeOtherwise // the daemon that made it was another
			} else if h.pooled.put(b) {
				b.keep()
				continue
			}
			b.note(ctx, Deleting, why)
			h.laterNow(b)
		}
	}
	looked := make(chan struct{}, len(h.options.Backends))
	for name, be := range h.options.Backends {
		l, ok := be.(sandbox.Finder)
		if !ok {
			looked <- struct{}{}
			continue
		}
		h.tasks.start(func(ctx context.Context) {
			for first := true; ; first = false {
				err := h.orphans(ctx, name, be, l)
				if first {
					looked <- struct{}{}
				}
				if err == nil {
					return
				}
				h.log.Warn("backend cannot list its sandboxes; it is asked again", "backend", name, "err", err)
				if !sleep(ctx, relist) {
					return
				}
			}
		})
	}
	timer := time.NewTimer(firstLook)
	defer timer.Stop()
wait:
	for range h.options.Backends {
		select {
		case <-looked:
		case <-timer.C:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	close(h.ready)
}

// orphans adopts the instances of a backend that carry our label and that the store does not know.
// Nothing is deleted because the store lost it.
func (h *Hub) orphans(ctx context.Context, name string, be sandbox.Backend, l sandbox.Finder) error {
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// Before the list is made: what is removed meanwhile is on it, and no longer known.
	before := make(map[string]bool)
	for _, b := range h.all() {
		before[b.id] = true
	}
	instances, err := l.List(within)
	if err != nil {
		return err
	}
	for _, inst := range instances {
		inst.Backend = name
		if _, err := wire.ParseLabel("sandbox id", inst.ID); err != nil {
			h.log.Warn("an instance that carries our label has no id of ours; it is left alone", "backend", name, "ref", inst.Ref)
			continue
		}
		h.mu.Lock()
		known := before[inst.ID] || h.boxes[inst.ID] != nil
		h.mu.Unlock()
		if known {
			continue
		}
		if err := h.adoptOrphan(ctx, be, inst); err != nil {
			return err
		}
	}
	return nil
}

// adoptOrphan makes a sandbox of an instance that the store does not know: the one that it was,
// where that is noted beside its records, else one that is lost.
func (h *Hub) adoptOrphan(ctx context.Context, be sandbox.Backend, inst sandbox.Instance) error {
	now := time.Now()
	f := facts{name: "lost-" + inst.ID, owner: h.options.Owner, state: Lost, reason: "found without a row in the store", since: now,
		created: inst.Created, inst: inst, spec: sandbox.Spec{ID: inst.ID, Image: inst.Image, Network: inst.Network, User: inst.User}}
	if l, ok := h.noted(inst.ID); ok {
		h.mu.Lock()
		taken := h.names[l.Name] != nil
		h.mu.Unlock()
		f.owner, f.created, f.spec, f.life, f.end, f.labels = l.Owner, l.Created, l.Spec, l.Life, l.End, l.Labels
		if !taken {
			f.name, f.state, f.reason = l.Name, Stopped, ""
		}
		if i, ok := be.(sandbox.Finder); ok && !taken {
			if s, err := i.Inspect(ctx, inst); err == nil && s.Running {
				f.state = Running
			}
		}
	}
	if f.created.IsZero() {
		f.created = now
	}
	b := newBox(h, inst.ID, f)
	row, err := f.row(b.id)
	if err != nil {
		return err
	}
	if err := h.options.Store.Add(ctx, row); err != nil {
		return err
	}
	h.register(b)
	h.journal.add(b.id, "adopted", map[string]any{"state": f.state})
	h.log.Warn("adopted a sandbox that the store did not know", "id", b.id, "name", f.name, "state", f.state)
	if f.state == Running {
		b.keep()
	}
	return nil
}

// goOn lets a sandbox go on that an earlier daemon froze while it copied its files.
func (b *box) goOn(ctx context.Context) {
	if b.lock(ctx) != nil {
		return
	}
	defer b.unlock()
	if be, err := b.hub.backend(b.get().inst.Backend); err == nil && b.get().reason == copied {
		if p, ok := be.(sandbox.Pauser); ok {
			b.thaw(ctx, p)
		}
	}
}
