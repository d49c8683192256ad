// Package pool decides how many sandboxes of which kind are booted before anybody asks for them,
// and which of them a caller gets. It is a state machine over members of any type: it boots
// nothing, removes nothing and has no clock of its own. The hub boots what is due, removes the
// surplus, and says what became of both.
package pool

import (
	"slices"
	"sync"
	"time"
)

const (
	firstRefill = time.Second // until a boot that failed is tried again, doubled each time
	lastRefill  = time.Minute
	settleTime  = 250 * time.Millisecond // after a claim, until it is replaced: a boot slows down what the owner does first
)

// Info is how much of the pool there is of one kind.
type Info struct {
	Image   string `json:"image"`
	Use     string `json:"use,omitempty"`     // what an API keeps them for; empty means for everybody
	Owner   string `json:"owner,omitempty"`   // for whom, where they have a use
	Size    int    `json:"size"`              // how many there are to be
	Ready   int    `json:"ready"`             // how many a new sandbox can be had from now
	Trouble string `json:"trouble,omitempty"` // why there are no more, if the last boot failed
}

// Kind is what members can stand in for each other. S is what the hub boots them from.
type Kind[S any] struct {
	Key   string // two kinds with one key are made alike
	Image string // for Info
	Use   string // an API keeps them for that; empty is for everybody
	Owner string // who owns what is made of them; where there is a use it is for nobody else
	Spec  S
}

func (k Kind[S]) is(o Kind[S]) bool { return k.Key == o.Key && k.Use == o.Use && k.Owner == o.Owner }

// shelf is the part of the pool of one kind.
type shelf[M comparable, S any] struct {
	Kind[S]
	size     int
	until    time.Time // of a kind with a use: when there are to be none any more
	members  []M       // oldest first
	failures int       // of boots, in a row
	next     time.Time // until when nothing is booted
	trouble  string
}

// Pool is the pool. Methods may be called at once; functions that they are given are called with
// its lock held.
type Pool[M comparable, S any] struct {
	wake chan struct{}

	mu      sync.Mutex
	drained bool           // guarded by mu
	shelves []*shelf[M, S] // guarded by mu, with what is in them
	waited  int            // guarded by mu; creations that somebody waits for
}

// New returns an empty pool.
func New[M comparable, S any]() *Pool[M, S] { return &Pool[M, S]{wake: make(chan struct{}, 1)} }

// Wake receives when something may be missing or too much.
func (p *Pool[M, S]) Wake() <-chan struct{} { return p.wake }

// Kick has Wake receive.
func (p *Pool[M, S]) Kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Add adds a kind of which there are to be size members.
func (p *Pool[M, S]) Add(k Kind[S], size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shelves = append(p.shelves, &shelf[M, S]{Kind: k, size: size})
}

// Keep has size members of a kind with a use until then. What was kept for the same use and owner
// and is made otherwise goes. A pool that was drained keeps none.
func (p *Pool[M, S]) Keep(k Kind[S], size int, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drained {
		return
	}
	found := false
	for _, s := range p.shelves {
		switch {
		case s.Use != k.Use || s.Owner != k.Owner:
		case s.Key != k.Key:
			s.size = 0
		default:
			if s.size < size {
				p.Kick()
			}
			found, s.size, s.until = true, size, until
		}
	}
	if !found && size > 0 {
		p.shelves = append(p.shelves, &shelf[M, S]{Kind: k, size: size, until: until})
		p.Kick()
	}
}

// Take takes the oldest member with that key that is ready, for owner. Two callers never get the
// same.
func (p *Pool[M, S]) Take(key, owner string, now time.Time, ready func(M) bool) (m M, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
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
			s.next = now.Add(settleTime)
		}
		p.Kick()
		return m, true
	}
	return m, false
}

// Put adds a member and reports whether there is room for it. One that is not fit was given up
// meanwhile: it is not added.
func (p *Pool[M, S]) Put(m M, key, owner string, fit bool) (room bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
		if s.Key == key && s.Owner == owner && len(s.members) < s.size {
			if fit {
				s.members = append(s.members, m)
			}
			return true
		}
	}
	return false
}

// Drop forgets a member.
func (p *Pool[M, S]) Drop(m M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
		s.members = slices.DeleteFunc(s.members, func(o M) bool { return o == m })
	}
	p.Kick()
}

// Rest leaves the kind of m, which is about to be given up for what it did, alone for a while:
// another would do the same.
func (p *Pool[M, S]) Rest(m M, why string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
		if slices.Contains(s.members, m) {
			s.next, s.trouble = now.Add(lastRefill), why
		}
	}
}

// Drain makes every member surplus, for good.
func (p *Pool[M, S]) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drained = true
	for _, s := range p.shelves {
		s.size = 0
	}
}

// Members are all members, of those kinds that keep says so.
func (p *Pool[M, S]) Members(keep func(Kind[S]) bool) (all []M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
		if keep(s.Kind) {
			all = append(all, s.members...)
		}
	}
	return all
}

// Surplus are the members that are to be given up: those beyond room, for what people ask for comes
// first, and those of a use that is over or for which fewer are kept.
func (p *Pool[M, S]) Surplus(now time.Time, room int) (all []M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
		all = append(all, s.members...)
	}
	all = all[min(max(room, 0), len(all)):]
	for _, s := range p.shelves {
		if s.Use != "" && now.After(s.until) {
			s.size = 0
		}
		for _, m := range s.members[min(s.size, len(s.members)):] {
			if !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	p.shelves = slices.DeleteFunc(p.shelves, func(s *shelf[M, S]) bool { return s.Use != "" && s.size == 0 && len(s.members) == 0 })
	return all
}

// Due returns a kind of which a member is missing, or after how long there may be one. room is how
// many members there may be, by the limit of that key; slots is how many boots may be under way at
// once, half of which are for people.
func (p *Pool[M, S]) Due(now time.Time, room int, key string, slots int) (k Kind[S], due bool, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = lastRefill
	all := 0
	for _, s := range p.shelves {
		all += len(s.members)
	}
	if all >= room {
		for _, s := range p.shelves {
			if len(s.members) < s.size {
				s.trouble = "there is no room for more beside the sandboxes that were asked for (" + key + ")"
			}
		}
		return k, false, wait
	}
	if 2*p.waited >= slots {
		return k, false, wait
	}
	for _, s := range p.shelves {
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

// Booted notes how a boot of a kind went: trouble is empty, or why it failed. It returns how often
// boots had failed before, and when the next one is due after a failure.
func (p *Pool[M, S]) Booted(k Kind[S], trouble string, now time.Time) (failed int, again time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
		if !s.is(k) {
			continue
		}
		failed = s.failures
		if trouble == "" {
			s.failures, s.next, s.trouble = 0, time.Time{}, ""
		} else {
			s.failures, s.next, s.trouble = failed+1, now.Add(min(firstRefill<<min(failed, 10), lastRefill)), trouble
		}
		return failed, s.next
	}
	return 0, time.Time{}
}

// SomebodyWaits counts a creation that somebody waits for, until done is called.
func (p *Pool[M, S]) SomebodyWaits() (done func()) {
	count := func(by int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waited += by
		p.Kick()
	}
	count(1)
	return func() { count(-1) }
}

// Info is how much there is, by kind.
func (p *Pool[M, S]) Info(ready func(M) bool) []Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []Info{}
	for _, s := range p.shelves {
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
