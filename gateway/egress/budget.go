package egress

import (
	"fmt"
	"sync"
)

// Budget bounds what all sandboxes of a daemon have open to the outside together, so that descriptors are left for everything else that it
// does. Its methods may be called at once.
type Budget struct {
	total int

	mu   sync.Mutex
	used int // guarded by mu
}

// NewBudget returns a budget of so many descriptors.
func NewBudget(descriptors int) *Budget { return &Budget{total: descriptors} }

// take takes n descriptors, or none. A nil Budget has as many as anybody wants.
func (b *Budget) take(n int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.total {
		return false
	}
	b.used += n
	return true
}

// give gives back what take took.
func (b *Budget) give(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

// spent is why a connection is refused that the budget has nothing for.
func (b *Budget) spent() refusal {
	return refusal{why: fmt.Sprintf("the daemon's sandboxes have %d connections open, as many as they may together", b.total)}
}

// DefaultConnections is how many connections a sandbox may have at once that asks for nothing else.
const DefaultConnections = 1024

// most is how many connections one sandbox may have: what was asked for, and no more than leaves something for others.
func (b *Budget) most(asked int) int {
	if asked <= 0 {
		asked = DefaultConnections
	}
	if b == nil {
		return asked
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
