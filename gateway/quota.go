package gateway

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
func (h *Hub) mayCreateLocked(f facts, kept int64) error {
	return admission.Create(h.options.Quota, h.options.Total, h.usageLocked(f.owner, nil, kept), h.allLocked(nil), f.limits())
}

// mayStart returns an error with code limit_quota if starting b is too much for its owner,
// limit_sandboxes if it is for the daemon. The returned function is called when it runs, or will
// not.
func (h *Hub) mayStart(b *box) (done func(), err error) {
	f := b.get()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := admission.Start(h.options.Quota, h.options.Total, h.usageLocked(f.owner, b, 0), h.allLocked(b), f.limits()); err != nil {
		return nil, err
	}
	h.starting[b] = true
	h.pooled.Kick() // it may have to make room
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.starting, b)
	}, nil
}

// usageLocked is what an owner's sandboxes have, without but; kept is what they have in images. It
// is called with mu held.
func (h *Hub) usageLocked(owner string, but *box, kept int64) admission.Usage {
	u := admission.Usage{Kept: kept}
	for _, b := range h.boxes {
		f := b.get()
		if b == but || f.owner != owner {
			continue
		}
		l := f.limits()
		u.Sandboxes++
		u.Disk += l.Disk
		if f.state != Stopped || h.starting[b] {
			u.Memory, u.CPUs = u.Memory+l.Memory, u.CPUs+l.CPUs
		}
	}
	return u
}

// allLocked counts the sandboxes of all owners, without the pool and without but. It is called with
// mu held.
func (h *Hub) allLocked(but *box) (all admission.All) {
	for _, b := range h.boxes {
		f := b.get()
		if b == but || f.isPooled() {
			continue
		}
		all.Exist++
		if f.state != Stopped || h.starting[b] {
			all.Running++
		}
	}
	return all
}

// withKept calls try with how many bytes owner keeps in images. When it is refused because of them,
// those that can be made again go, all but keep, and it is called once more.
func (h *Hub) withKept(ctx context.Context, owner, keep string, try func(kept int64) error) error {
	kept, err := h.kept(ctx, owner)
	if err != nil {
		return err
	}
	refused := try(kept)
	if !errors.Is(refused, admission.ErrImages) || !h.forget(ctx, owner, keep) {
		return refused
	}
	if kept, err = h.kept(ctx, owner); err != nil {
		return err
	}
	return try(kept)
}

// forget removes images of an owner's that can be made again, all but keep, and reports whether any
// went.
func (h *Hub) forget(ctx context.Context, owner, keep string) (any bool) {
	for name, be := range h.options.Backends {
		p, ok := be.(sandbox.Imager)
		if !ok {
			continue
		}
		n, err := p.Forget(ctx, owner, keep)
		if err != nil {
			h.log.Warn("images that can be made again stay", "backend", name, "owner", owner, "err", err)
		}
		if n > 0 {
			h.log.Info("images of builds and set-ups made room", "owner", owner, "images", n)
			any = true
		}
	}
	return any
}

// kept is how many bytes an owner's snapshots take, the images of their forks, and those of their
// builds and set-ups. It is 0 where nothing depends on it.
func (h *Hub) kept(ctx context.Context, owner string) (sum int64, err error) {
	if h.options.Quota.Disk == 0 {
		return 0, nil
	}
	var ids []string
	for _, b := range h.all() {
		if b.get().owner == owner {
			ids = append(ids, b.id)
		}
	}
	for _, be := range h.options.Backends {
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

// roomToKeep returns an error if an image of b's files would be more than b may have on disk, than
// its owner may, or than there is.
func (h *Hub) roomToKeep(ctx context.Context, b *box, be sandbox.Backend, s sandbox.Imager) error {
	f := b.get()
	limit := f.limits().Disk
	if limit == 0 && h.options.MinFree == 0 && h.options.Quota.Disk == 0 {
		return nil
	}
	weight, err := s.Weight(ctx, f.inst)
	if err != nil {
		return err
	}
	if err := admission.Copy(weight, limit); err != nil {
		return err
	}
	if m, ok := be.(sandbox.Meter); ok && h.options.MinFree > 0 {
		if room, err := m.Room(ctx); err == nil {
			if err := admission.CopyTo(weight, room, h.options.MinFree); err != nil {
				return err
			}
		}
	}
	return h.withKept(ctx, f.owner, "", func(kept int64) error { return h.imageFits(f.owner, kept, weight) })
}

// imageFits returns an error with code limit_quota if so many bytes more in images are too much for
// an owner.
func (h *Hub) imageFits(owner string, kept, more int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return admission.Image(h.options.Quota, h.usageLocked(owner, nil, kept), more)
}

// limits are those of the instance, and those that it is going to have while there is none. A
// machine that is taken as it is has none.
func (f facts) limits() sandbox.Limits {
	switch {
	case f.spec.Host.URI != "":
		return sandbox.Limits{}
	case f.inst.ID != "":
		return f.inst.Limits.Or(f.spec.Limits)
	}
	return f.spec.Limits.Or(sandbox.DefaultLimits)
}

// MayBegin returns an error with code limit_quota if another session is too much for the owner of
// b. The returned function is called when the session is there, or will not be.
func (b *box) MayBegin() (done func(), err error) {
	h := b.hub
	owner := b.get().owner
	if h.options.Quota.Sessions == 0 {
		return func() {}, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := admission.Session(h.options.Quota, h.sessionsLocked(owner)); err != nil {
		return nil, err
	}
	h.beginning[owner]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.beginning[owner]--; h.beginning[owner] == 0 {
			delete(h.beginning, owner)
		}
	}, nil
}

// sessionsLocked is how many sessions an owner's sandboxes have, or are about to. It is called with
// mu held.
func (h *Hub) sessionsLocked(owner string) int {
	n := h.beginning[owner]
	for _, other := range h.boxes {
		if other.get().owner != owner {
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
