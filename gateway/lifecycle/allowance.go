package lifecycle

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/admission"
)

// Allowance is a limit that several sandboxes share, with its present usage.
type Allowance struct {
	Of string `json:"of"` // a principal, or "all" for all owners together
	// Sandboxes, running, sessions, connections, memory, cpus, disk.
	What string `json:"what"`
	// For memory, cpus and disk the sum of the sandboxes' limits.
	Have float64 `json:"have"`
	Most float64 `json:"most"`           // 0 means no limit
	Unit string  `json:"unit,omitempty"` // "bytes"; empty for counts
	Key  string  `json:"key"`            // of the configuration that sets Most
}

// ofAll is the Of of the daemon's totals.
const ofAll = "all"

// Text formats the usage and the limit for people.
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
	kept, err := a.imageBytes(ctx, owner)
	if err != nil {
		return nil, err
	}
	q, most := a.options.quota, a.options.total
	mine := a.connectionsOf(owner)
	a.roster.mu.Lock()
	defer a.roster.mu.Unlock()
	has := a.usageLocked(owner, nil, kept)
	all := []Allowance{
		{Of: owner, What: "sandboxes", Have: float64(has.Sandboxes), Most: float64(q.Sandboxes),
			Key: "max_sandboxes"},
		{Of: owner, What: "sessions", Have: float64(a.sessionsLocked(owner)),
			Most: float64(q.Sessions), Key: "quota.sessions"},
		{Of: owner, What: "connections", Have: float64(mine.Used()), Most: float64(mine.Most()),
			Key: "quota.connections"},
		{Of: owner, What: "memory", Have: float64(has.Memory), Most: float64(q.Memory),
			Unit: "bytes", Key: "quota.memory"},
		{Of: owner, What: "cpus", Have: has.CPUs, Most: q.CPUs, Key: "quota.cpus"},
		{Of: owner, What: "disk", Have: float64(has.Disk + has.Kept), Most: float64(q.Disk),
			Unit: "bytes", Key: "quota.disk"},
	}
	if owner == a.options.admin {
		every := a.allLocked(nil)
		all = append(all,
			Allowance{Of: ofAll, What: "sandboxes", Have: float64(every.Exist),
				Most: float64(most.Sandboxes), Key: "total.sandboxes"},
			Allowance{Of: ofAll, What: "running", Have: float64(every.Running),
				Most: float64(most.Running), Key: "total.running"},
			Allowance{Of: ofAll, What: "connections", Have: float64(a.connections.Used()),
				Most: float64(a.connections.Most()), Key: "connections"})
	}
	return all, nil
}
