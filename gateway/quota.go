package gateway

import (
	"context"
	"errors"
	"math"
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Quota is what the sandboxes of one principal may be allowed together: the sums are those of their limits, not of what they
// use at the moment. Hosts count as sandboxes and with their sessions. 0 is no such limit, unless said otherwise.
type Quota struct {
	Sandboxes   int     // 0 is 64
	Sessions    int     // that live
	Memory      int64   // bytes; of sandboxes that are not stopped
	CPUs        float64 // of the same
	Connections int     // that are open to the outside; 0 is no such limit, but half of what all owners may have, and no more than are left
	Disk        int64   // bytes; also of those that are stopped: their files stay; images that were made of or for them with what they take
}

const defaultSandboxes = 64

// roomForLocked returns an error with code limit_sandboxes or limit_quota if f, which is about to be made, is too much for its
// owner, who has kept so many bytes in images, or too much for the daemon. It is called with mu held.
func (h *Hub) roomForLocked(f facts, kept int64) error {
	owned := h.ownedLocked(f.owner)
	if most := h.options.Quota.Sandboxes; owned >= most {
		e := wire.Errorf(wire.CodeLimitSandboxes, "you have %d sandboxes, the limit is %d (max_sandboxes)", owned, most)
		e.Hint = "rm one that is not needed any more"
		return e
	}
	if err := h.totalLocked(nil); err != nil {
		return err
	}
	if err := h.diskQuotaLocked(f, nil, kept); err != nil {
		return err
	}
	return h.runQuotaLocked(f, nil)
}

// ownedLocked is how many sandboxes an owner has. It is called with mu held.
func (h *Hub) ownedLocked(owner string) (n int) {
	for _, b := range h.boxes {
		if b.get().owner == owner {
			n++
		}
	}
	return n
}

// mayRun returns an error with code limit_quota if starting b is too much for its owner, limit_sandboxes if it is for the daemon. The returned function is called when
// it runs, or will not.
func (h *Hub) mayRun(b *box) (done func(), err error) {
	f := b.get()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.totalLocked(b); err != nil {
		return nil, err
	}
	if err := h.runQuotaLocked(f, b); err != nil {
		return nil, err
	}
	h.starting[b] = true
	h.warm.kick() // it may have to make room
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.starting, b)
	}, nil
}

// runQuotaLocked is about what a sandbox takes while it runs. It is called with mu held, as diskQuotaLocked is.
func (h *Hub) runQuotaLocked(f facts, self *box) error {
	q, own := h.options.Quota, f.limits()
	memory, cpus := h.runningLimitsLocked(f.owner, self)
	memory, cpus = memory+own.Memory, cpus+own.CPUs
	if q.Memory > 0 && memory > q.Memory {
		return overQuota("quota.memory", "memory", size(memory), size(own.Memory), size(q.Memory), "stop or rm one that runs, or ask for less: --memory")
	}
	if q.CPUs > 0 && cpus > q.CPUs+1e-9 {
		return overQuota("quota.cpus", "cpus", cores(cpus), cores(own.CPUs), cores(q.CPUs), "stop or rm one that runs, or ask for less: --cpus")
	}
	return nil
}

// runningLimitsLocked are the sums of the limits of an owner's sandboxes that run or are about to, but one. It is called with mu held.
func (h *Hub) runningLimitsLocked(owner string, but *box) (memory int64, cpus float64) {
	for _, b := range h.boxes {
		if other := b.get(); b != but && other.owner == owner && (other.state != Stopped || h.starting[b]) {
			l := other.limits()
			memory, cpus = memory+l.Memory, cpus+l.CPUs
		}
	}
	return memory, cpus
}

func (h *Hub) diskQuotaLocked(f facts, self *box, kept int64) error {
	q, own := h.options.Quota, f.limits()
	disk := own.Disk + h.allowedDiskLocked(f.owner, self) + kept
	if q.Disk > 0 && disk > q.Disk {
		err := overQuota("quota.disk", "disk", size(disk), size(own.Disk), size(q.Disk),
			"rm one that is not needed any more, docker rmi a snapshot, or ask for less: --disk")
		if kept == 0 {
			return err
		}
		err.Message += ", " + size(kept) + " of it in images of yours"
		return &shown{public: err, kind: errImages}
	}
	return nil
}

// errImages says that an owner might have room if it were not for what they keep in images.
var errImages = errors.New("images of the owner's take disk of the quota")

// withKept calls try with how many bytes owner keeps in images. When it is refused because of them, those that can be made again go,
// all but keep, and it is called once more.
func (h *Hub) withKept(ctx context.Context, owner, keep string, try func(kept int64) error) error {
	kept, err := h.kept(ctx, owner)
	if err != nil {
		return err
	}
	refused := try(kept)
	if !errors.Is(refused, errImages) || !h.forget(ctx, owner, keep) {
		return refused
	}
	if kept, err = h.kept(ctx, owner); err != nil {
		return err
	}
	return try(kept)
}

// forget removes images of an owner's that can be made again, all but keep, and reports whether any went.
func (h *Hub) forget(ctx context.Context, owner, keep string) (any bool) {
	for name, be := range h.options.Backends {
		p, ok := be.(sandbox.Preparer)
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

// allowedDiskLocked is the sum of the limits of disk of an owner's sandboxes but one. It is called with mu held.
func (h *Hub) allowedDiskLocked(owner string, but *box) (sum int64) {
	for _, b := range h.boxes {
		if other := b.get(); b != but && other.owner == owner {
			sum += other.limits().Disk
		}
	}
	return sum
}

// kept is how many bytes an owner's snapshots take, the images of their forks, and those of their builds and set-ups. It is 0 where nothing depends on it.
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
		s, ok := be.(sandbox.Snapshotter)
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

// roomToKeep returns an error if an image of b's files would be more than b may have on disk, than its owner may, or than there is.
func (h *Hub) roomToKeep(ctx context.Context, b *box, be sandbox.Backend, s sandbox.Snapshotter) error {
	f := b.get()
	limit := f.limits().Disk
	if limit == 0 && h.options.MinFree == 0 && h.options.Quota.Disk == 0 {
		return nil
	}
	weight, err := s.Weight(ctx, f.inst)
	if err != nil {
		return err
	}
	if limit > 0 && weight > limit {
		e := wire.Errorf(wire.CodeUnavailable, "%s: an image of its files would have %s, and its limit is %s", diskFull, size(weight), size(limit))
		e.Hint = "remove files in it; those with holes count as if they were full"
		return e
	}
	if m, ok := be.(sandbox.Meter); ok && h.options.MinFree > 0 {
		if room, err := m.Room(ctx); err == nil && room-weight < h.options.MinFree {
			e := wire.Errorf(wire.CodeUnavailable, "%s: an image of its files would have %s, this machine has %s of disk left, and disk.min_free is %s",
				diskFull, size(weight), size(room), size(h.options.MinFree))
			e.Hint = "make room, such as by sandboxd rm or docker image prune"
			return e
		}
	}
	return h.withKept(ctx, f.owner, "", func(kept int64) error { return h.imageFits(f.owner, kept, weight) })
}

// imageFits returns an error with code limit_quota if so many bytes more in images are too much for an owner.
func (h *Hub) imageFits(owner string, kept, more int64) error {
	h.mu.Lock()
	disk := h.allowedDiskLocked(owner, nil) + kept + more
	h.mu.Unlock()
	if q := h.options.Quota.Disk; q > 0 && disk > q {
		e := wire.Errorf(wire.CodeLimitQuota, "with %s more your sandboxes and images would have %s of disk, the limit is %s (quota.disk)", size(more), size(disk), size(q))
		e.Hint = "rm a sandbox, or docker rmi a snapshot, that is not needed any more"
		return &shown{public: e, kind: errImages}
	}
	return nil
}

func overQuota(key, what, sum, own, most, hint string) *wire.Error {
	e := wire.Errorf(wire.CodeLimitQuota, "with its %s your sandboxes would have %s of %s, the limit is %s (%s)", own, sum, what, most, key)
	e.Hint = hint
	return e
}

func cores(n float64) string { return strconv.FormatFloat(math.Round(n*1000)/1000, 'f', -1, 64) }

// limits are those of the instance, and those that it is going to have while there is none. A machine that is taken as it is has
// none.
func (f facts) limits() sandbox.Limits {
	switch {
	case f.spec.Host.URI != "":
		return sandbox.Limits{}
	case f.inst.ID != "":
		return f.inst.Limits.Or(f.spec.Limits)
	}
	return f.spec.Limits.Or(sandbox.DefaultLimits)
}

// mayBegin returns an error with code limit_quota if another session is too much for the owner of b. The returned function is
// called when the session is there, or will not be.
func (h *Hub) mayBegin(b *box) (done func(), err error) {
	most, owner := h.options.Quota.Sessions, b.get().owner
	if most == 0 {
		return func() {}, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.sessionsLocked(owner)
	if n >= most {
		e := wire.Errorf(wire.CodeLimitQuota, "your sandboxes have %d sessions, the limit is %d (quota.sessions)", n, most)
		e.Hint = "end one: exit in it, or stop a sandbox"
		return nil, e
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

// sessionsLocked is how many sessions an owner's sandboxes have, or are about to. It is called with mu held.
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
