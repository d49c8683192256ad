// Package pool decides how many sandboxes of which kind are booted in advance, and which of them a
// caller gets. It is a state machine over members of any type: it boots nothing, removes nothing
// and has no clock. The registry boots what is due, removes the surplus, and reports the results.
package pool

import (
	"slices"
	"sync"
	"time"
)

const (
	firstRefill = time.Second // delay of the next boot after a failed one, doubled each time
	lastRefill  = time.Minute
	// Between a claim and the replacement: a boot slows down the owner's first command.
	refillDelay = 250 * time.Millisecond
)

// Info describes the pool of one kind.
type Info struct {
	Image string `json:"image"`
	// The API that they are kept for; empty means for everyone.
	Use     string `json:"use,omitempty"`
	Owner   string `json:"owner,omitempty"`   // for whom, if they have a use
	Size    int    `json:"size"`              // intended number
	Ready   int    `json:"ready"`             // number of pooled sandboxes that can be claimed now
	Trouble string `json:"trouble,omitempty"` // why there are no more, if the last boot failed
}

// Kind is a set of interchangeable members. S is what the registry boots them from.
type Kind[S any] struct {
	Key   string // two kinds with the same key are made alike
	Image string // for Info
	Use   string // the API that they are kept for; empty is for everyone
	Owner string // owner of their images; with a use, they are for this owner only
	Spec  S
}

func (k Kind[S]) is(o Kind[S]) bool {
	return k.Key == o.Key && k.Use == o.Use && k.Owner == o.Owner
}

// group is the part of the pool of one kind.
type group[M comparable, S any] struct {
	Kind[S]
	size     int
	until    time.Time // of a kind with a use: when it ends
	members  []M       // oldest first
	failures int       // consecutive failed boots
	next     time.Time // no boots before this time
	trouble  string
}

// Pool is the pool. Its methods may be called concurrently; they call functions that they are given
// with the pool's lock held.
type Pool[M comparable, S any] struct {
	wake chan struct{}

	mu      sync.Mutex
	drained bool           // guarded by mu
	groups  []*group[M, S] // guarded by mu, with their content
	waited  int            // guarded by mu; creations that a caller waits for
}

// New returns an empty pool.
func New[M comparable, S any]() *Pool[M, S] { return &Pool[M, S]{wake: make(chan struct{}, 1)} }

// Wake receives when members may be missing or surplus.
func (p *Pool[M, S]) Wake() <-chan struct{} { return p.wake }

// Check makes Wake receive.
func (p *Pool[M, S]) Check() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Add adds a kind with size members.
func (p *Pool[M, S]) Add(k Kind[S], size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups = append(p.groups, &group[M, S]{Kind: k, size: size})
}

// Keep keeps size members of a kind with a use until a time. It makes members surplus that are kept
// for the same use and owner and are made differently. A drained pool keeps none.
func (p *Pool[M, S]) Keep(k Kind[S], size int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drained {
		return
	}
	found := false
	for _, s := range p.groups {
		switch {
		case s.Use != k.Use || s.Owner != k.Owner:
		case s.Key != k.Key:
			s.size = 0
		default:
			if s.size < size {
				p.Check()
			}
			found, s.size, s.until = true, size, until
		}
	}
	if !found && size > 0 {
		p.groups = append(p.groups, &group[M, S]{Kind: k, size: size, until: until})
		p.Check()
	}
}

// Take removes and returns the oldest ready member with that key, for owner. Two callers never get
// the same one.
func (p *Pool[M, S]) Take(key, owner string, now time.Time, ready func(M) bool) (m M, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups {
		if s.Key != key || s.Use != "" && s.Owner != owner {
			continue
		}
		i := slices.IndexFunc(s.members, ready)
		if i < 0 {
			continue
		}
		m = s.members[i]
		s.members = slices.Delete(s.members, i, i+1)
		if s.next.Before(now) {
			s.next = now.Add(refillDelay)
		}
		p.Check()
		return m, true
	}
	return m, false
}

// Put adds a member and reports whether there was room for it. It does not add one that is not fit,
// because it was given up meanwhile.
func (p *Pool[M, S]) Put(m M, key, owner string, fit bool) (room bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups {
		if s.Key == key && s.Owner == owner && len(s.members) < s.size {
			if fit {
				s.members = append(s.members, m)
			}
			return true
		}
	}
	return false
}

// Drop removes a member.
func (p *Pool[M, S]) Drop(m M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups {
		s.members = slices.DeleteFunc(s.members, func(o M) bool { return o == m })
	}
	p.Check()
}

// Rest delays boots of m's kind, because m is about to be given up for a fault that the next one
// would repeat.
func (p *Pool[M, S]) Rest(m M, why string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups {
		if slices.Contains(s.members, m) {
			s.next, s.trouble = now.Add(lastRefill), why
		}
	}
}

// Drain makes every member surplus, permanently.
func (p *Pool[M, S]) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drained = true
	for _, s := range p.groups {
		s.size = 0
	}
}

// Members returns all members of the kinds for which keep returns true.
func (p *Pool[M, S]) Members(keep func(Kind[S]) bool) (all []M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups {
		if keep(s.Kind) {
			all = append(all, s.members...)
		}
	}
	return all
}

// Surplus returns the members to give up: those beyond room, because requested sandboxes have
// priority, and those of a use that has ended or is kept in smaller number.
func (p *Pool[M, S]) Surplus(now time.Time, room int) (all []M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups {
		all = append(all, s.members...)
	}
	all = all[min(max(room, 0), len(all)):]
	for _, s := range p.groups {
		if s.Use != "" && now.After(s.until) {
			s.size = 0
		}
		for _, m := range s.members[min(s.size, len(s.members)):] {
			if !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	p.groups = slices.DeleteFunc(p.groups,
		func(s *group[M, S]) bool { return s.Use != "" && s.size == 0 && len(s.members) == 0 })
	return all
}

// Due returns a kind that lacks a member, or when one may be due. room is how many members are
// allowed, by the limit of that key. slots is how many boots may run at a time; half of them are
// reserved for requested sandboxes.
func (p *Pool[M, S]) Due(now time.Time, room int, key string, slots int) (k Kind[S], due bool,
	wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = lastRefill
	all := 0
	for _, s := range p.groups {
		all += len(s.members)
	}
	if all >= room {
		for _, s := range p.groups {
			if len(s.members) < s.size {
				s.trouble = "no room for more next to the requested sandboxes (" + key + ")"
			}
		}
		return k, false, wait
	}
	if 2*p.waited >= slots {
		return k, false, wait
	}
	for _, s := range p.groups {
		switch {
		case len(s.members) >= s.size:
		case now.Before(s.next):
			wait = min(wait, s.next.Sub(now))
		default:
			return s.Kind, true, 0
		}
	}
	return k, false, wait
}

// Booted records the result of a boot: trouble is empty, or why it failed. It returns how many
// boots had failed before, and when the next one is due after a failure.
func (p *Pool[M, S]) Booted(k Kind[S], trouble string, now time.Time) (failed int,
	again time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.groups {
		if !s.is(k) {
			continue
		}
		failed = s.failures
		if trouble == "" {
			s.failures, s.next, s.trouble = 0, time.Time{}, ""
		} else {
			s.failures, s.next, s.trouble = failed+1,
				now.Add(min(firstRefill<<min(failed, 10), lastRefill)), trouble
		}
		return failed, s.next
	}
	return 0, time.Time{}
}

// Waiting counts a creation that a caller waits for, until done is called.
func (p *Pool[M, S]) Waiting() (done func()) {
	count := func(by int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waited += by
		p.Check()
	}
	count(1)
	return func() { count(-1) }
}

// Info describes the pool, by kind.
func (p *Pool[M, S]) Info(ready func(M) bool) []Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []Info{}
	for _, s := range p.groups {
		i := Info{Image: s.Image, Use: s.Use, Size: s.size, Trouble: s.trouble}
		if s.Use != "" {
			i.Owner = s.Owner
		}
		for _, m := range s.members {
			if ready(m) {
				i.Ready++
			}
		}
		all = append(all, i)
	}
	return all
}
