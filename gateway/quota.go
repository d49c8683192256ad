package gateway

import (
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
	Disk      int64   // bytes; also of those that are stopped: their files stay
}

const defaultSandboxes = 64

// roomForLocked returns an error with code limit_sandboxes or limit_quota if f, which is about to be made, is too much for its
// owner. It is called with mu held.
func (h *Hub) roomForLocked(f facts) error {
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
	if err := h.diskQuotaLocked(f, nil); err != nil {
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

func (h *Hub) diskQuotaLocked(f facts, self *box) error {
	q, own := h.options.Quota, f.limits()
	disk := own.Disk
	for _, b := range h.boxes {
		if other := b.get(); b != self && other.owner == f.owner {
			disk += other.limits().Disk
		}
	}
	if q.Disk > 0 && disk > q.Disk {
		return overQuota("quota.disk", "disk", size(disk), size(own.Disk), size(q.Disk), "rm one that is not needed any more, or ask for less: --disk")
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
