package lifecycle

import (
	"context"
	"errors"
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

// recovery takes up what a former daemon left.
type recovery struct{ reg *Registry }

// sweep has a backend remove what calls of an earlier daemon left, and what the engine still makes
// of them.
func (r recovery) sweep(ctx context.Context, name string, s sandbox.Finder) {
	reg := r.reg
	for _, pause := range sweeps {
		if !sleep(ctx, pause) {
			return
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			reg.log.Warn("something of an earlier daemon may be left", "backend", name, "err", err)
		}
	}
}

// recover takes up every sandbox where a former daemon left it. Creations that were cut short are
// undone and removals finished; the rest is kept in touch with. Then the backends are asked for
// what the store does not know.
func (r recovery) recover(ctx context.Context) {
	reg := r.reg
	revised := &revisions{reg, make(map[string]bool)}
	for _, sb := range reg.found {
		switch f := sb.get(); f.State {
		case Creating:
			// Nobody waits for it any more, and how far it got only the engine knows.
			if err := sb.become(ctx, func(f *Record) { f.State, f.Reason = Deleting, "its creation was cut short" }); err != nil {
				reg.log.Error("creation not undone", "id", sb.id, "err", err)
				continue
			}
			reg.unname(sb)
			reg.removals.doubt(sb)
			reg.removals.laterNow(sb)
		case Deleting:
			if f.Instance.ID == "" { // the same, by a daemon that was cut short in turn
				reg.removals.doubt(sb)
			}
			reg.removals.laterNow(sb)
		case Running, Broken, Paused:
			if f.Reason == copied {
				reg.tasks.start(copier{sb}.goOn)
			}
			sb.guest.keep()
		case Warm:
			reg.notes.remove(sb.id) // of a claim that was cut short
			why := "the daemon is configured without it"
			if revised.differ(ctx, f) {
				why = madeOtherwise // the daemon that made it was another
			} else if reg.pooled.put(sb) {
				sb.guest.keep()
				continue
			}
			sb.note(ctx, Deleting, why)
			reg.removals.laterNow(sb)
		}
	}
	looked := make(chan struct{}, len(reg.options.Backends))
	for name, be := range reg.options.Backends {
		l, ok := be.(sandbox.Finder)
		if !ok {
			looked <- struct{}{}
			continue
		}
		reg.tasks.start(func(ctx context.Context) {
			for first := true; ; first = false {
				err := r.orphans(ctx, name, l)
				if first {
					looked <- struct{}{}
				}
				if err == nil {
					return
				}
				reg.log.Warn("backend cannot list its sandboxes; it is asked again", "backend", name, "err", err)
				if !sleep(ctx, relist) {
					return
				}
			}
		})
	}
	timer := time.NewTimer(firstLook)
	defer timer.Stop()
wait:
	for range reg.options.Backends {
		select {
		case <-looked:
		case <-timer.C:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	close(reg.ready)
}

// orphans adopts the instances of a backend that carry our label and that the store does not know.
// Nothing is deleted because the store lost it.
func (r recovery) orphans(ctx context.Context, name string, l sandbox.Finder) error {
	reg := r.reg
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// Before the list is made: what is removed meanwhile is on it, and no longer known.
	before := make(map[string]bool)
	for _, sb := range reg.All() {
		before[sb.id] = true
	}
	instances, err := l.List(within)
	if err != nil {
		return err
	}
	for _, inst := range instances {
		inst.Backend = name
		if _, err := wire.ParseLabel("sandbox id", inst.ID); err != nil {
			reg.log.Warn("an instance that carries our label has no id of ours; it is left alone", "backend", name, "ref", inst.Ref)
			continue
		}
		if before[inst.ID] || reg.byID(inst.ID) != nil {
			continue
		}
		if err := r.adoptOrphan(ctx, l, inst); err != nil {
			return err
		}
	}
	return nil
}

// adoptOrphan makes a sandbox of an instance that the store does not know: the one that it was,
// where that is noted beside its records, else one that is lost.
func (r recovery) adoptOrphan(ctx context.Context, be sandbox.Finder, inst sandbox.Instance) error {
	reg := r.reg
	status, err := be.Inspect(ctx, inst)
	if errors.Is(err, sandbox.ErrGone) { // since the list was made
		return nil
	}
	now := time.Now()
	f := Record{Name: "lost-" + inst.ID, Owner: reg.options.Owner, State: Lost, Reason: "found without a row in the store", Since: now,
		Created: inst.Created, Instance: inst, Asked: Asked{Spec: sandbox.Spec{ID: inst.ID, Image: inst.Image, Network: inst.Network, User: inst.User}}}
	if l, ok := reg.notes.read(inst.ID); ok {
		taken := reg.Find(l.Name) != nil
		f.Owner, f.Created, f.Asked = l.Owner, l.Created, l.Spec
		if !taken {
			f.Name, f.State, f.Reason = l.Name, Stopped, ""
		}
		if !taken && status.Running {
			f.State = Running
		}
	}
	if f.Created.IsZero() {
		f.Created = now
	}
	sb := newSandbox(reg, inst.ID, f)
	row, err := f.row(sb.id)
	if err != nil {
		return err
	}
	if err := reg.options.Store.Add(ctx, row); err != nil {
		return err
	}
	reg.register(sb)
	reg.journal.add(sb.id, "adopted", map[string]any{"state": f.State})
	reg.log.Warn("adopted a sandbox that the store did not know", "id", sb.id, "name", f.Name, "state", f.State)
	if f.State == Running {
		sb.guest.keep()
	}
	return nil
}

// goOn lets a sandbox go on that an earlier daemon froze while it copied its files.
func (c copier) goOn(ctx context.Context) {
	if c.lock(ctx) != nil {
		return
	}
	defer c.unlock()
	if be, err := c.reg.options.backend(c.get().Instance.Backend); err == nil && c.get().Reason == copied {
		if p, ok := be.(sandbox.Pauser); ok {
			c.thaw(ctx, p)
		}
	}
}
