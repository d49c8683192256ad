package lifecycle

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/admission"
)

// Allowance is something of which sandboxes have parts, and may have only so much together.
type Allowance struct {
	Of   string  `json:"of"`             // a principal, or all: every owner that the daemon has
	What string  `json:"what"`           // sandboxes, running, sessions, connections, memory, cpus, disk
	Have float64 `json:"have"`           // of limits of memory, cores and disk the sum: what is used is less
	Most float64 `json:"most"`           // 0 is no limit
	Unit string  `json:"unit,omitempty"` // bytes
	Key  string  `json:"key"`            // of the configuration, where Most is set
}

// ofAll is whose the allowances of the daemon are.
const ofAll = "all"

// Text is how much there is and may be, as a person reads it.
func (a Allowance) Text() (have, most string) {
	say := admission.Cores
	if a.Unit != "" {
		say = func(n float64) string { return admission.Size(int64(n)) }
	}
	if a.Most == 0 {
		return say(a.Have), "-"
	}
	return say(a.Have), say(a.Most)
}

// allowances implements Registry.Allowances.
func (a *accounts) allowances(ctx context.Context, owner string) ([]Allowance, error) {
	kept, err := a.kept(ctx, owner)
	if err != nil {
		return nil, err
	}
	q, most := a.reg.options.Quota, a.reg.options.Total
	mine := a.connectionsOf(owner)
	a.reg.mu.Lock()
	defer a.reg.mu.Unlock()
	has := a.usageLocked(owner, nil, kept)
	all := []Allowance{
		{Of: owner, What: "sandboxes", Have: float64(has.Sandboxes), Most: float64(q.Sandboxes), Key: "max_sandboxes"},
		{Of: owner, What: "sessions", Have: float64(a.sessionsLocked(owner)), Most: float64(q.Sessions), Key: "quota.sessions"},
		{Of: owner, What: "connections", Have: float64(mine.Used()), Most: float64(mine.Most()), Key: "quota.connections"},
		{Of: owner, What: "memory", Have: float64(has.Memory), Most: float64(q.Memory), Unit: "bytes", Key: "quota.memory"},
		{Of: owner, What: "cpus", Have: has.CPUs, Most: q.CPUs, Key: "quota.cpus"},
		{Of: owner, What: "disk", Have: float64(has.Disk + has.Kept), Most: float64(q.Disk), Unit: "bytes", Key: "quota.disk"},
	}
	if owner == a.reg.options.Owner {
		every := a.allLocked(nil)
		all = append(all,
			Allowance{Of: ofAll, What: "sandboxes", Have: float64(every.Exist), Most: float64(most.Sandboxes), Key: "total.sandboxes"},
			Allowance{Of: ofAll, What: "running", Have: float64(every.Running), Most: float64(most.Running), Key: "total.running"},
			Allowance{Of: ofAll, What: "connections", Have: float64(a.connections.Used()), Most: float64(a.connections.Most()), Key: "connections"})
	}
	return all, nil
}
