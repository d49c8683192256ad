package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// accounts know what each owner uses, and decide whether more is allowed. Of a sandbox they read
// the record and the sessions, and change nothing.
type accounts struct {
	options     accountOptions
	roster      *roster        // its mu makes a count and the change that depends on it one step
	connections *egress.Budget // of all sandboxes

	beginning map[string]int    // guarded by roster.mu; sessions about to start, by owner
	starting  map[*Sandbox]bool // guarded by roster.mu; stopped sandboxes about to run

	mu     sync.Mutex                // never held with another lock
	shares map[string]*egress.Budget // guarded by mu; parts of connections, by owner
	builds map[*builder]bool         // guarded by mu; that run
}

// accountOptions are the limits that accounts hold owners to, and what they need for it. All but
// the limits are required.
type accountOptions struct {
	quota    admission.Quota
	total    admission.Total
	minFree  int64                      // bytes of a backend's disk that stay free; 0 is no limit
	admin    string                     // sees the totals
	backends map[string]sandbox.Backend // which keep the images of owners
	log      *slog.Logger
	// Called with roster.mu held when a sandbox is about to run, because the pool may have to
	// shrink.
	starts func()
}

// newAccounts returns accounts of the sandboxes in r, which may have that many connections open
// together; 0 is the default.
func newAccounts(o accountOptions, r *roster, connections int) (*accounts, error) {
	budget, err := connectionBudget(connections)
	if err != nil {
		return nil, err
	}
	return &accounts{options: o, roster: r, connections: budget, beginning: make(map[string]int),
		starting: make(map[*Sandbox]bool), shares: make(map[string]*egress.Budget),
		builds: make(map[*builder]bool)}, nil
}

// hold keeps the images that a build uses until done is called.
func (a *accounts) hold(b *builder) (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.builds[b] = true
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.builds, b)
	}
}

// held reports whether a build that runs uses an image.
func (a *accounts) held(image string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for b := range a.builds {
		if b.uses(image) {
			return true
		}
	}
	return false
}

// mayCreateLocked returns an error with code limit_sandboxes or limit_quota if creating f exceeds a
// limit. kept is the size of its owner's images. It is called with roster.mu held.
func (a *accounts) mayCreateLocked(f Record, kept int64) error {
	return admission.Create(a.options.quota, a.options.total, a.usageLocked(f.Owner, nil, kept),
		a.allLocked(nil), f.limits())
}

// mayStart reserves the start of sb. The error has code limit_quota for a limit of its owner,
// limit_sandboxes for one of the daemon. The caller calls done when sb runs or has failed to start.
func (a *accounts) mayStart(sb *Sandbox) (done func(), err error) {
	f := sb.get()
	a.roster.mu.Lock()
	defer a.roster.mu.Unlock()
	if err := admission.Start(a.options.quota, a.options.total, a.usageLocked(f.Owner, sb, 0),
		a.allLocked(sb), f.limits()); err != nil {
		return nil, err
	}
	a.starting[sb] = true
	a.options.starts()
	return func() {
		a.roster.mu.Lock()
		defer a.roster.mu.Unlock()
		delete(a.starting, sb)
	}, nil
}

// usageLocked returns the usage of an owner's sandboxes without but. kept is the size of the
// owner's images. It is called with roster.mu held.
func (a *accounts) usageLocked(owner string, but *Sandbox, kept int64) admission.Usage {
	u := admission.Usage{Kept: kept}
	for _, sb := range a.roster.all {
		f := sb.get()
		if sb == but || f.Owner != owner {
			continue
		}
		l := f.limits()
		u.Sandboxes++
		u.Disk += l.Disk
		if f.State != Stopped || a.starting[sb] {
			u.Memory, u.CPUs = u.Memory+l.Memory, u.CPUs+l.CPUs
		}
	}
	return u
}

// allLocked counts the sandboxes of all owners, without pooled ones and without but. It is called
// with roster.mu held.
func (a *accounts) allLocked(but *Sandbox) (all admission.All) {
	for _, sb := range a.roster.all {
		f := sb.get()
		if sb == but || f.isPooled() {
			continue
		}
		all.Exist++
		if f.State != Stopped || a.starting[sb] {
			all.Running++
		}
	}
	return all
}

// withImageBytes calls try with the size of owner's images. If they are what exceeds the quota, it
// removes the images that can be rebuilt, except keep, and tries once more.
func (a *accounts) withImageBytes(ctx context.Context, owner, keep string,
	try func(kept int64) error) error {
	kept, err := a.imageBytes(ctx, owner)
	if err != nil {
		return err
	}
	refused := try(kept)
	if !errors.Is(refused, admission.ErrImages) || !a.forget(ctx, owner, keep) {
		return refused
	}
	if kept, err = a.imageBytes(ctx, owner); err != nil {
		return err
	}
	return try(kept)
}

// forget removes an owner's images that can be rebuilt, except keep, and reports whether it removed
// any.
func (a *accounts) forget(ctx context.Context, owner, keep string) (any bool) {
	for name, be := range a.options.backends {
		p, ok := be.(sandbox.Imager)
		if !ok {
			continue
		}
		n, err := p.Forget(ctx, owner, func(image string) bool {
			return image == keep || a.held(image)
		})
		if err != nil {
			a.options.log.Warn("rebuildable images not removed", "backend", name, "owner", owner,
				"err", err)
		}
		if n > 0 {
			a.options.log.Info("rebuildable images removed: disk quota", "owner", owner,
				"images", n)
			any = true
		}
	}
	return any
}

// imageBytes returns the size of an owner's snapshots and of the images of its forks, builds and
// setups, in bytes. It is 0 where no quota depends on it.
func (a *accounts) imageBytes(ctx context.Context, owner string) (sum int64, err error) {
	if a.options.quota.Disk == 0 {
		return 0, nil
	}
	var ids []string
	for _, sb := range a.roster.list() {
		if sb.get().Owner == owner {
			ids = append(ids, sb.id)
		}
	}
	for _, be := range a.options.backends {
		s, ok := be.(sandbox.Imager)
		if !ok {
			continue
		}
		n, err := s.Kept(ctx, owner, ids)
		if err != nil {
			e := &wire.Error{Code: wire.CodeUnavailable,
				Message: "disk usage of your images is unknown, and quota.disk counts it",
				Hint: "start the engine, or try again if it is busy; sandboxd doctor shows " +
					"what is wrong"}
			return 0, &publicError{public: e, kind: ErrEngine, err: err}
		}
		sum += n
	}
	return sum, nil
}

// roomToCopy returns an error if an image of sb's files would exceed sb's disk limit, its owner's
// quota or the free disk space.
func (a *accounts) roomToCopy(ctx context.Context, sb *Sandbox, be sandbox.Backend,
	s sandbox.Imager) error {
	f := sb.get()
	limit := f.limits().Disk
	if limit == 0 && a.options.minFree == 0 && a.options.quota.Disk == 0 {
		return nil
	}
	weight, err := s.Weight(ctx, f.Instance)
	if err != nil {
		return err
	}
	if err := admission.Copy(weight, limit); err != nil {
		return err
	}
	if m, ok := be.(sandbox.Meter); ok && a.options.minFree > 0 {
		if room, err := m.Room(ctx); err == nil {
			if err := admission.CopyTo(weight, room, a.options.minFree); err != nil {
				return err
			}
		}
	}
	return a.withImageBytes(ctx, f.Owner, "", func(kept int64) error {
		return a.imageFits(f.Owner, kept, weight)
	})
}

// imageFits returns an error with code limit_quota if more bytes in images exceed the owner's
// quota.
func (a *accounts) imageFits(owner string, kept, more int64) error {
	a.roster.mu.Lock()
	defer a.roster.mu.Unlock()
	return admission.Image(a.options.quota, a.usageLocked(owner, nil, kept), more)
}

// mayHaveDisk returns an error with code limit_quota if sb cannot have the disk limit of f, its
// changed record.
func (a *accounts) mayHaveDisk(ctx context.Context, sb *Sandbox, f Record) error {
	return a.withImageBytes(ctx, f.Owner, "", func(kept int64) error {
		a.roster.mu.Lock()
		defer a.roster.mu.Unlock()
		return admission.Disk(a.options.quota, a.usageLocked(f.Owner, sb, kept), f.limits())
	})
}

// mayBegin implements Guest.MayBegin.
func (a *accounts) mayBegin(owner string) (done func(), err error) {
	if a.options.quota.Sessions == 0 {
		return func() {}, nil
	}
	a.roster.mu.Lock()
	defer a.roster.mu.Unlock()
	if err := admission.Session(a.options.quota, a.sessionsLocked(owner)); err != nil {
		return nil, err
	}
	a.beginning[owner]++
	return func() {
		a.roster.mu.Lock()
		defer a.roster.mu.Unlock()
		if a.beginning[owner]--; a.beginning[owner] == 0 {
			delete(a.beginning, owner)
		}
	}, nil
}

// sessionsLocked counts the sessions of an owner's sandboxes, including those about to start. It is
// called with roster.mu held.
func (a *accounts) sessionsLocked(owner string) int {
	n := a.beginning[owner]
	for _, other := range a.roster.all {
		if other.get().Owner != owner {
			continue
		}
		for _, l := range other.sessions.All() {
			if !l.Ended() {
				n++
			}
		}
	}
	return n
}
