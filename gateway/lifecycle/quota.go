package lifecycle

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// mayCreateLocked returns an error with code limit_sandboxes or limit_quota if f, which is about to
// be made, is too much for its owner, who keeps so many bytes in images, or for the daemon. It is
// called with mu held.
func (reg *Registry) mayCreateLocked(f Record, kept int64) error {
	return admission.Create(reg.options.Quota, reg.options.Total, reg.usageLocked(f.Owner, nil, kept), reg.allLocked(nil), f.limits())
}

// mayStart returns an error with code limit_quota if starting sb is too much for its owner,
// limit_sandboxes if it is for the daemon. The returned function is called when it runs, or will
// not.
func (reg *Registry) mayStart(sb *Sandbox) (done func(), err error) {
	f := sb.get()
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if err := admission.Start(reg.options.Quota, reg.options.Total, reg.usageLocked(f.Owner, sb, 0), reg.allLocked(sb), f.limits()); err != nil {
		return nil, err
	}
	reg.starting[sb] = true
	reg.pooled.Kick() // it may have to make room
	return func() {
		reg.mu.Lock()
		defer reg.mu.Unlock()
		delete(reg.starting, sb)
	}, nil
}

// usageLocked is what an owner's sandboxes have, without but; kept is what they have in images. It
// is called with mu held.
func (reg *Registry) usageLocked(owner string, but *Sandbox, kept int64) admission.Usage {
	u := admission.Usage{Kept: kept}
	for _, sb := range reg.all {
		f := sb.get()
		if sb == but || f.Owner != owner {
			continue
		}
		l := f.limits()
		u.Sandboxes++
		u.Disk += l.Disk
		if f.State != Stopped || reg.starting[sb] {
			u.Memory, u.CPUs = u.Memory+l.Memory, u.CPUs+l.CPUs
		}
	}
	return u
}

// allLocked counts the sandboxes of all owners, without the pool and without but. It is called with
// mu held.
func (reg *Registry) allLocked(but *Sandbox) (all admission.All) {
	for _, sb := range reg.all {
		f := sb.get()
		if sb == but || f.isPooled() {
			continue
		}
		all.Exist++
		if f.State != Stopped || reg.starting[sb] {
			all.Running++
		}
	}
	return all
}

// withKept calls try with how many bytes owner keeps in images. When it is refused because of them,
// those that can be made again go, all but keep, and it is called once more.
func (reg *Registry) withKept(ctx context.Context, owner, keep string, try func(kept int64) error) error {
	kept, err := reg.kept(ctx, owner)
	if err != nil {
		return err
	}
	refused := try(kept)
	if !errors.Is(refused, admission.ErrImages) || !reg.forget(ctx, owner, keep) {
		return refused
	}
	if kept, err = reg.kept(ctx, owner); err != nil {
		return err
	}
	return try(kept)
}

// forget removes images of an owner's that can be made again, all but keep, and reports whether any
// went.
func (reg *Registry) forget(ctx context.Context, owner, keep string) (any bool) {
	for name, be := range reg.options.Backends {
		p, ok := be.(sandbox.Imager)
		if !ok {
			continue
		}
		n, err := p.Forget(ctx, owner, keep)
		if err != nil {
			reg.log.Warn("images that can be made again stay", "backend", name, "owner", owner, "err", err)
		}
		if n > 0 {
			reg.log.Info("images of builds and set-ups made room", "owner", owner, "images", n)
			any = true
		}
	}
	return any
}

// kept is how many bytes an owner's snapshots take, the images of their forks, and those of their
// builds and set-ups. It is 0 where nothing depends on it.
func (reg *Registry) kept(ctx context.Context, owner string) (sum int64, err error) {
	if reg.options.Quota.Disk == 0 {
		return 0, nil
	}
	var ids []string
	for _, sb := range reg.All() {
		if sb.get().Owner == owner {
			ids = append(ids, sb.id)
		}
	}
	for _, be := range reg.options.Backends {
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
func (reg *Registry) roomToKeep(ctx context.Context, sb *Sandbox, be sandbox.Backend, s sandbox.Imager) error {
	f := sb.get()
	limit := f.limits().Disk
	if limit == 0 && reg.options.MinFree == 0 && reg.options.Quota.Disk == 0 {
		return nil
	}
	weight, err := s.Weight(ctx, f.Instance)
	if err != nil {
		return err
	}
	if err := admission.Copy(weight, limit); err != nil {
		return err
	}
	if m, ok := be.(sandbox.Meter); ok && reg.options.MinFree > 0 {
		if room, err := m.Room(ctx); err == nil {
			if err := admission.CopyTo(weight, room, reg.options.MinFree); err != nil {
				return err
			}
		}
	}
	return reg.withKept(ctx, f.Owner, "", func(kept int64) error { return reg.imageFits(f.Owner, kept, weight) })
}

// imageFits returns an error with code limit_quota if so many bytes more in images are too much for
// an owner.
func (reg *Registry) imageFits(owner string, kept, more int64) error {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	return admission.Image(reg.options.Quota, reg.usageLocked(owner, nil, kept), more)
}

// MayBegin returns an error with code limit_quota if another session is too much for the owner of
// sb. The returned function is called when the session is there, or will not be.
func (sb *Sandbox) MayBegin() (done func(), err error) {
	reg := sb.reg
	owner := sb.get().Owner
	if reg.options.Quota.Sessions == 0 {
		return func() {}, nil
	}
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if err := admission.Session(reg.options.Quota, reg.sessionsLocked(owner)); err != nil {
		return nil, err
	}
	reg.beginning[owner]++
	return func() {
		reg.mu.Lock()
		defer reg.mu.Unlock()
		if reg.beginning[owner]--; reg.beginning[owner] == 0 {
			delete(reg.beginning, owner)
		}
	}, nil
}

// sessionsLocked is how many sessions an owner's sandboxes have, or are about to. It is called with
// mu held.
func (reg *Registry) sessionsLocked(owner string) int {
	n := reg.beginning[owner]
	for _, other := range reg.all {
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
