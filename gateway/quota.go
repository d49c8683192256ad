package gateway

import (
	"context"
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Quota is what the sandboxes of one principal may be allowed together: the sums are those of their limits, not of what they
// use at the moment. Hosts count as sandboxes and with their sessions. 0 is no such limit, unless said otherwise.
type Quota struct {
	Sandboxes int     // 0 is 64
	Sessions  int     // that live
	Memory    int64   // bytes; of sandboxes that are not stopped
	CPUs      float64 // of the same
	Disk      int64   // bytes; also of those that are stopped: their files stay; snapshots and the images of forks with what they take
}

const defaultSandboxes = 64

// roomForLocked returns an error with code limit_sandboxes or limit_quota if f, which is about to be made, is too much for its
// owner, who has kept so many bytes in images. It is called with mu held.
func (h *Hub) roomForLocked(f facts, kept int64) error {
	owned := 0
	for _, b := range h.boxes {
		if b.get().owner == f.owner {
			owned++
		}
	}
	if most := h.options.Quota.Sandboxes; owned >= most {
		e := wire.Errorf(wire.CodeLimitSandboxes, "you have %d sandboxes, the limit is %d", owned, most)
		e.Hint = "rm one that is not needed any more"
		return e
	}
	if err := h.diskQuotaLocked(f, nil, kept); err != nil {
		return err
	}
	return h.runQuotaLocked(f, nil)
}

// mayRun returns an error with code limit_quota if starting b is too much for its owner. The returned function is called when
// it runs, or will not.
func (h *Hub) mayRun(b *box) (done func(), err error) {
	f := b.get()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.runQuotaLocked(f, b); err != nil {
		return nil, err
	}
	h.starting[b] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.starting, b)
	}, nil
}

// runQuotaLocked is about what a sandbox takes while it runs. It is called with mu held, as diskQuotaLocked is.
func (h *Hub) runQuotaLocked(f facts, self *box) error {
	q, own := h.options.Quota, f.limits()
	memory, cpus := own.Memory, own.CPUs
	for _, b := range h.boxes {
		if other := b.get(); b != self && other.owner == f.owner && (other.state != Stopped || h.starting[b]) {
			l := other.limits()
			memory, cpus = memory+l.Memory, cpus+l.CPUs
		}
	}
	if q.Memory > 0 && memory > q.Memory {
		return overQuota("quota.memory", "memory", size(memory), size(own.Memory), size(q.Memory), "stop or rm one that runs, or ask for less: --memory")
	}
	if q.CPUs > 0 && cpus > q.CPUs+1e-9 {
		return overQuota("quota.cpus", "cpus", cores(cpus), cores(own.CPUs), cores(q.CPUs), "stop or rm one that runs, or ask for less: --cpus")
	}
	return nil
}

func (h *Hub) diskQuotaLocked(f facts, self *box, kept int64) error {
	q, own := h.options.Quota, f.limits()
	disk := own.Disk + h.allowedDiskLocked(f.owner, self) + kept
	if q.Disk > 0 && disk > q.Disk {
		return overQuota("quota.disk", "disk", size(disk), size(own.Disk), size(q.Disk),
			"rm one that is not needed any more, docker rmi a snapshot, or ask for less: --disk")
	}
	return nil
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

// kept is how many bytes an owner's snapshots take, and the images of their forks. It is 0 where nothing depends on it.
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
	within, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	for _, be := range h.options.Backends {
		s, ok := be.(sandbox.Snapshotter)
		if !ok {
			continue
		}
		n, err := s.Kept(within, owner, ids)
		if err != nil {
			e := &wire.Error{Code: wire.CodeUnavailable, Message: "how much disk your snapshots take is not known, and quota.disk counts it",
				Hint: "start the engine; sandboxd doctor tells what is wrong"}
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
	kept, err := h.kept(ctx, f.owner)
	if err != nil {
		return err
	}
	h.mu.Lock()
	disk := h.allowedDiskLocked(f.owner, nil) + kept + weight
	h.mu.Unlock()
	if q := h.options.Quota.Disk; q > 0 && disk > q {
		e := wire.Errorf(wire.CodeLimitQuota, "with %s more your sandboxes and snapshots would have %s of disk, the limit is %s (quota.disk)", size(weight), size(disk), size(q))
		e.Hint = "rm a sandbox, or docker rmi a snapshot, that is not needed any more"
		return e
	}
	return nil
}

func overQuota(key, what, sum, own, most, hint string) error {
	e := wire.Errorf(wire.CodeLimitQuota, "with its %s your sandboxes would have %s of %s, the limit is %s (%s)", own, sum, what, most, key)
	e.Hint = hint
	return e
}

func cores(n float64) string { return strconv.FormatFloat(n, 'g', 4, 64) }

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
	n := h.beginning[owner]
	for _, other := range h.boxes {
		if other.get().owner != owner {
			continue
		}
		for _, l := range other.allLives() {
			if !l.Ended() {
				n++
			}
		}
	}
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
