package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	firstList = 2 * time.Second // for Ready to wait for backends
	relist    = 10 * time.Second
	lateBoot  = 30 * time.Second // after which a request to a backend is done or will never be
)

// sweeps are the pauses before each sweep after the daemon's start.
var sweeps = []time.Duration{0, time.Second, 4 * time.Second, 15 * time.Second, 40 * time.Second,
	2 * time.Minute}

// recovery continues what an earlier daemon left unfinished.
type recovery struct{ reg *Registry }

// sweep makes a backend remove what interrupted calls of an earlier daemon left. It repeats,
// because the engine may still be carrying them out.
func (r recovery) sweep(ctx context.Context, name string, s sandbox.Finder) {
	reg := r.reg
	for _, pause := range sweeps {
		if !sleep(ctx, pause) {
			return
		}
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			reg.log.Warn("leftovers of an earlier daemon may remain", "backend", name, "err", err)
		}
	}
}

// recover continues every sandbox where an earlier daemon left it. It undoes interrupted creations,
// finishes removals and connects to the rest. Then it asks the backends for sandboxes that the
// store does not know.
func (r recovery) recover(ctx context.Context) {
	reg := r.reg
	revised := &revisions{reg, make(map[string]bool)}
	var stopped []*Sandbox
	for _, sb := range reg.found {
		switch f := sb.get(); f.State {
		case Creating:
			// Its caller is gone, and only the engine knows how far it got.
			if err := sb.transition(ctx, func(f *Record) {
				f.State, f.Reason = Deleting, "its creation was interrupted"
			}); err != nil {
				reg.log.Error("creation not undone", "id", sb.id, "err", err)
				continue
			}
			reg.roster.unname(sb)
			reg.removals.markUncertain(sb)
			reg.removals.retryNow(sb)
		case Deleting:
			if f.Instance.ID == "" { // an interrupted creation, too
				reg.removals.markUncertain(sb)
			}
			reg.removals.retryNow(sb)
		case Running, Broken, Paused:
			if f.Reason == copied {
				reg.tasks.start(copier{sb}.goOn)
			}
			sb.guest.connect()
		case Stopped:
			stopped = append(stopped, sb)
		case Warm:
			reg.manifests.remove(sb.id) // of an interrupted claim
			why := "the configuration has no such pool"
			if revised.differ(ctx, f) {
				why = outdated
			} else if reg.pooled.put(sb) {
				sb.guest.connect()
				continue
			}
			sb.observed(ctx, Deleting, why)
			reg.removals.retryNow(sb)
		}
	}
	reg.found = nil // those that are removed later are forgotten
	reg.tasks.start(func(ctx context.Context) { r.undoStarts(ctx, stopped) })
	listed := make(chan struct{}, len(reg.options.Backends))
	for name, be := range reg.options.Backends {
		l, ok := be.(sandbox.Finder)
		if !ok {
			listed <- struct{}{}
			continue
		}
		reg.tasks.start(func(ctx context.Context) {
			for first := true; ; first = false {
				err := r.orphans(ctx, name, l)
				if first {
					listed <- struct{}{}
				}
				if err == nil {
					return
				}
				reg.log.Warn("backend cannot list its sandboxes, will retry", "backend", name,
					"err", err)
				if !sleep(ctx, relist) {
					return
				}
			}
		})
	}
	timer := time.NewTimer(firstList)
	defer timer.Stop()
wait:
	for range reg.options.Backends {
		select {
		case <-listed:
		case <-timer.C:
			break wait
		case <-ctx.Done():
			break wait
		}
	}
	close(reg.ready)
}

// undoStarts makes sure that stopped sandboxes are: an earlier daemon may have died while it
// started one.
func (r recovery) undoStarts(ctx context.Context, stopped []*Sandbox) {
	down := make(map[string]bool) // backends that do not answer
	for _, sb := range stopped {
		backend := sb.get().Instance.Backend
		if down[backend] {
			continue
		}
		err := sb.act(ctx, func(ctx context.Context, f Record) error {
			be, err := r.reg.options.backend(f.Instance.Backend)
			stopper, ok := be.(sandbox.Lifecycle)
			if err != nil || !ok || f.State != Stopped {
				return err
			}
			within, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return stopper.Stop(within, f.Instance, r.reg.options.StopGrace)
		})
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, sandbox.ErrEngine):
			down[backend] = true
			r.reg.log.Warn("programs may run in stopped sandboxes", "backend", backend, "err", err)
		case err != nil && !errors.Is(err, sandbox.ErrStopped) &&
			!errors.Is(err, sandbox.ErrGone) &&
			!errors.Is(err, &wire.Error{Code: wire.CodeNotFound}):
			r.reg.log.Warn("programs may run in a stopped sandbox", "id", sb.id, "err", err)
		}
	}
}

// orphans adopts the instances that carry the daemon's label and that the store does not know. A
// lost row never causes a removal.
func (r recovery) orphans(ctx context.Context, name string, l sandbox.Finder) error {
	reg := r.reg
	within, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// Read before listing: a sandbox removed meanwhile is in the list but no longer registered.
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
			reg.log.Warn("instance ignored: it has the daemon's label but no valid id",
				"backend", name, "ref", inst.Ref)
			continue
		}
		if before[inst.ID] || reg.roster.byID(inst.ID) != nil {
			continue
		}
		if err := r.adoptOrphan(ctx, l, inst); err != nil {
			return err
		}
	}
	return nil
}

// adoptOrphan registers an instance that the store does not know. With a manifest beside its
// records it becomes the sandbox that it was, otherwise one in state Lost.
func (r recovery) adoptOrphan(ctx context.Context, be sandbox.Finder, inst sandbox.Instance) error {
	reg := r.reg
	status, err := be.Inspect(ctx, inst)
	if errors.Is(err, sandbox.ErrGone) { // removed since it was listed
		return nil
	}
	now := time.Now()
	f := Record{Name: "lost-" + inst.ID, Owner: reg.options.Owner, State: Lost,
		Reason: "not in the store", Since: now,
		Created: inst.Created, Instance: inst, Asked: Asked{Spec: sandbox.Spec{ID: inst.ID,
			Image: inst.Image, Network: inst.Network, User: inst.User}}}
	if l, ok := reg.manifests.read(inst.ID); ok {
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
	reg.log.Warn("sandbox adopted: it was not in the store", "id", sb.id, "name", f.Name,
		"state", f.State)
	if f.State == Running {
		sb.guest.connect()
	}
	return nil
}

// goOn unfreezes a sandbox that an earlier daemon froze while it copied its files.
func (c copier) goOn(ctx context.Context) {
	if c.lock(ctx) != nil {
		return
	}
	defer c.unlock()
	if be, err := c.reg.options.backend(c.get().Instance.Backend); err == nil &&
		c.get().Reason == copied {
		if p, ok := be.(sandbox.Pauser); ok {
			c.unfreeze(ctx, p)
		}
	}
}
