package lifecycle

import (
	"context"
	"errors"
	"sync"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// accounts are what owners have, and whether they may have more.
type accounts struct {
	reg         *Registry
	connections *egress.Budget // of all sandboxes

	beginning map[string]int    // guarded by Registry.mu; sessions that are about to be, by owner
	starting  map[*Sandbox]bool // guarded by Registry.mu; stopped, and about to run

	mu     sync.Mutex                // alone
	shares map[string]*egress.Budget // guarded by mu; parts of connections, by owner
}

func newAccounts(reg *Registry) (*accounts, error) {
	connections, err := connectionBudget(reg.options.Connections)
	if err != nil {
		return nil, err
	}
	return &accounts{reg: reg, connections: connections, beginning: make(map[string]int),
		starting: make(map[*Sandbox]bool), shares: make(map[string]*egress.Budget)}, nil
}

// mayCreateLocked returns an error with code limit_sandboxes or limit_quota if f, which is about to
// be made, is too much for its owner, who keeps so many bytes in images, or for the daemon. It is
// called with mu held.
func (a *accounts) mayCreateLocked(f Record, kept int64) error {
	return admission.Create(a.reg.options.Quota, a.reg.options.Total, a.usageLocked(f.Owner, nil, kept), a.allLocked(nil), f.limits())
}

// mayStart returns an error with code limit_quota if starting sb is too much for its owner,
// limit_sandboxes if it is for the daemon. The returned function is called when it runs, or will
// not.
func (a *accounts) mayStart(sb *Sandbox) (done func(), err error) {
	f := sb.get()
	a.reg.mu.Lock()
	defer a.reg.mu.Unlock()
	if err := admission.Start(a.reg.options.Quota, a.reg.options.Total, a.usageLocked(f.Owner, sb, 0), a.allLocked(sb), f.limits()); err != nil {
		return nil, err
	}
	a.starting[sb] = true
	a.reg.pooled.Kick() // it may have to make room
	return func() {
		a.reg.mu.Lock()
		defer a.reg.mu.Unlock()
		delete(a.starting, sb)
	}, nil
}

// usageLocked is what an owner's sandboxes have, without but; kept is what they have in images. It
// is called with mu held.
func (a *accounts) usageLocked(owner string, but *Sandbox, kept int64) admission.Usage {
	u := admission.Usage{Kept: kept}
	for _, sb := range a.reg.all {
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

// allLocked counts the sandboxes of all owners, without the pool and without but. It is called with
// mu held.
func (a *accounts) allLocked(but *Sandbox) (all admission.All) {
	for _, sb := range a.reg.all {
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

// withKept calls try with how many bytes owner keeps in images. When it is refused because of them,
// those that can be made again go, all but keep, and it is called once more.
func (a *accounts) withKept(ctx context.Context, owner, keep string, try func(kept int64) error) error {
	kept, err := a.kept(ctx, owner)
	if err != nil {
		return err
	}
	refused := try(kept)
	if !errors.Is(refused, admission.ErrImages) || !a.forget(ctx, owner, keep) {
		return refused
	}
	if kept, err = a.kept(ctx, owner); err != nil {
		return err
	}
	return try(kept)
}

// forget removes images of an owner's that can be made again, all but keep, and reports whether any
// went.
func (a *accounts) forget(ctx context.Context, owner, keep string) (any bool) {
	for name, be := range a.reg.options.Backends {
		p, ok := be.(sandbox.Imager)
		if !ok {
			continue
		}
		n, err := p.Forget(ctx, owner, keep)
		if err != nil {
			a.reg.log.Warn("images that can be made again stay", "backend", name, "owner", owner, "err", err)
		}
		if n > 0 {
			a.reg.log.Info("images of builds and set-ups made room", "owner", owner, "images", n)
			any = true
		}
	}
	return any
}

// kept is how many bytes an owner's snapshots take, the images of their forks, and those of their
// builds and set-ups. It is 0 where nothing depends on it.
func (a *accounts) kept(ctx context.Context, owner string) (sum int64, err error) {
	if a.reg.options.Quota.Disk == 0 {
		return 0, nil
	}
	var ids []string
	for _, sb := range a.reg.All() {
		if sb.get().Owner == owner {
			ids = append(ids, sb.id)
		}
	}
	for _, be := range a.reg.options.Backends {
		s, ok := be.(sandbox.Imager)
		if !ok {
			continue
		}
		n, err := s.Kept(ctx, owner, ids)
		if err != nil {
			e := &wire.Error{Code: wire.CodeUnavailable, Message: "how much disk your images take is not known, and quota.disk counts it",
				Hint: "start the engine, or try again if it is busy; sandboxd doctor tells what is wrong"}
			return 0, &shown{public: e, kind: ErrEngine, err: err}
		}
		sum += n
	}
	return sum, nil
}

// roomToKeep returns an error if an image of sb's files would be more than sb may have on disk, than
// its owner may, or than there is.
func (a *accounts) roomToKeep(ctx context.Context, sb *Sandbox, be sandbox.Backend, s sandbox.Imager) error {
	f := sb.get()
	limit := f.limits().Disk
	if limit == 0 && a.reg.options.MinFree == 0 && a.reg.options.Quota.Disk == 0 {
		return nil
	}
	weight, err := s.Weight(ctx, f.Instance)
	if err != nil {
		return err
	}
	if err := admission.Copy(weight, limit); err != nil {
		return err
	}
	if m, ok := be.(sandbox.Meter); ok && a.reg.options.MinFree > 0 {
		if room, err := m.Room(ctx); err == nil {
			if err := admission.CopyTo(weight, room, a.reg.options.MinFree); err != nil {
				return err
			}
		}
	}
	return a.withKept(ctx, f.Owner, "", func(kept int64) error { return a.imageFits(f.Owner, kept, weight) })
}

// imageFits returns an error with code limit_quota if so many bytes more in images are too much for
// an owner.
func (a *accounts) imageFits(owner string, kept, more int64) error {
	a.reg.mu.Lock()
	defer a.reg.mu.Unlock()
	return admission.Image(a.reg.options.Quota, a.usageLocked(owner, nil, kept), more)
}

// MayBegin returns an error with code limit_quota if another session is too much for the owner of
// sb. The returned function is called when the session is there, or will not be.
func (a *accounts) mayBegin(owner string) (done func(), err error) {
	reg := a.reg
	if reg.options.Quota.Sessions == 0 {
		return func() {}, nil
	}
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if err := admission.Session(reg.options.Quota, a.sessionsLocked(owner)); err != nil {
		return nil, err
	}
	a.beginning[owner]++
	return func() {
		reg.mu.Lock()
		defer reg.mu.Unlock()
		if a.beginning[owner]--; a.beginning[owner] == 0 {
			delete(a.beginning, owner)
		}
	}, nil
}

// sessionsLocked is how many sessions an owner's sandboxes have, or are about to. It is called with
// mu held.
func (a *accounts) sessionsLocked(owner string) int {
	n := a.beginning[owner]
	for _, other := range a.reg.all {
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
