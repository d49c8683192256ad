package egress

import (
	"fmt"
	"math"
	"sync"
)

// Budget bounds what all sandboxes of a daemon have open to the outside together, so that descriptors are left for everything else that it
// does. Its methods may be called at once, those of its shares, too.
type Budget struct {
	total int
	of    *Budget // of which this is a share; nil: of none

	mu   sync.Mutex // of a share before that of what it is a share of
	used int        // guarded by mu
}

// NewBudget returns a budget of so many descriptors.
func NewBudget(descriptors int) *Budget { return &Budget{total: descriptors} }

// Share returns a budget for some of the sandboxes, of at most so many descriptors; 0 is no such limit. Whatever that is, a share takes
// no more than are left for everybody: alone it has half of all, and who comes next always finds some.
func (b *Budget) Share(most int) *Budget { return &Budget{total: most, of: b} }

// Most is how many descriptors there are, of a share how many it can have.
func (b *Budget) Most() int {
	half := math.MaxInt
	if b.of != nil {
		half = b.of.total / 2
	}
	if b.total <= 0 {
		return half
	}
	return min(b.total, half)
}

// Used is how many are taken now.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// take takes n descriptors, or none and says why. A nil Budget has as many as anybody wants.
func (b *Budget) take(n int) refusal {
	if b == nil {
		return refusal{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		return b.lendLocked(n, 0)
	}
	if b.total > 0 && b.used+n > b.total {
		return refusal{limit: LimitOwner, why: fmt.Sprintf("your sandboxes have %d connections open, as many as one owner's may together (quota.connections): end some, or stop a sandbox", b.used)}
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if why := b.of.lendLocked(n, b.used); why != (refusal{}) {
		return why
	}
	b.used += n
	return refusal{}
}

// lendLocked takes n for who has some already. It is called with mu held.
func (b *Budget) lendLocked(n, has int) refusal {
	switch free := b.total - b.used; {
	case free < n:
		return refusal{limit: LimitDaemon, why: fmt.Sprintf("the daemon's sandboxes have %d connections open, as many as they may together", b.total)}
	case has > 0 && has+n > free:
		return refusal{limit: LimitOwner, why: fmt.Sprintf("your sandboxes have %d connections open, and %d are left for everybody (connections): end some, or stop a sandbox", has, free)}
	}
	b.used += n
	return refusal{}
}

// give gives back what take took.
func (b *Budget) give(n int) {
	if b == nil {
		return
	}
	b.of.give(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

// DefaultConnections is how many connections a sandbox may have at once that asks for nothing else.
const DefaultConnections = 1024

// most is how many connections one sandbox may have: what was asked for, and no more than leaves something for others.
func (b *Budget) most(asked int) int {
	if asked <= 0 {
		asked = DefaultConnections
	}
	switch {
	case b == nil:
		return asked
	case b.of != nil:
		return b.of.most(asked)
	}
	return min(asked, max(1, b.total/4))
}

// lookUpCost is how many descriptors a name costs while it is looked up: the resolver asks for both kinds of addresses at once.
const lookUpCost = 2

// Buffers of TCP connections, in bytes. One connection alone may have much, which makes it fast; the more there are, the less each
// newer one may grow to, so that what a sandbox can make the daemon hold by reading nothing is bounded.
const (
	bufferMin     = 4 << 10
	bufferDefault = 256 << 10
	bufferMax     = 4 << 20
	bufferLeast   = 32 << 10 // of a connection among very many
	bufferBudget  = 64 << 20 // of a sandbox; see bufferShare

	crowd = 64 // connections from which on each copies in small pieces
)

// bufferShare is how large either buffer of a connection may become while n are open, in powers of two so that it changes seldom. A sandbox that fills
// each to its most before it opens the next holds some 220 MiB with a thousand connections.
func bufferShare(n int) int {
	share := bufferMax
	for share > bufferLeast && share*4*n > bufferBudget {
		share /= 2
	}
	return share
}
