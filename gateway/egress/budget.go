package egress

import (
	"fmt"
	"math"
	"sync"
)

// Budget limits the outside connections of all sandboxes of a daemon together, so that descriptors
// remain for its other work. Its methods, and those of its shares, are safe for concurrent use.
type Budget struct {
	total int
	of    *Budget // the budget that this is a share of; nil: none

	mu   sync.Mutex // of a share, locked before that of its parent
	used int        // guarded by mu
}

// NewBudget returns a budget of that many descriptors.
func NewBudget(descriptors int) *Budget { return &Budget{total: descriptors} }

// Share returns a budget for some of the sandboxes, of at most that many descriptors; 0 means no
// such limit. A share also gets no more than what is left for others: alone it gets half, and
// capacity always remains for another share.
func (b *Budget) Share(most int) *Budget { return &Budget{total: most, of: b} }

// Most returns the number of descriptors, or how many a share can get.
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

// Used returns the number of descriptors in use.
func (b *Budget) Used() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// take takes n descriptors, or none and returns why. A nil Budget is unlimited.
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
		return refusal{limit: LimitOwner,
			why: fmt.Sprintf(
				"your sandboxes have %d connections open, the limit of one owner "+
					"(quota.connections): close some, or stop a sandbox", b.used)}
	}
	b.of.mu.Lock()
	defer b.of.mu.Unlock()
	if why := b.of.lendLocked(n, b.used); why != (refusal{}) {
		return why
	}
	b.used += n
	return refusal{}
}

// lendLocked takes n for a share that has some already. The caller holds mu.
func (b *Budget) lendLocked(n, has int) refusal {
	switch free := b.total - b.used; {
	case free < n:
		return refusal{limit: LimitDaemon, why: fmt.Sprintf(
			"the daemon's sandboxes have %d connections open, the limit for all", b.total)}
	case has > 0 && has+n > free:
		return refusal{limit: LimitOwner,
			why: fmt.Sprintf(
				"your sandboxes have %d connections open, and only %d are left for all owners "+
					"(connections): close some, or stop a sandbox", has, free)}
	}
	b.used += n
	return refusal{}
}

// give returns n descriptors.
func (b *Budget) give(n int) {
	if b == nil {
		return
	}
	b.of.give(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

// DefaultConnections is the default limit of concurrent connections of a sandbox.
const DefaultConnections = 1024

// most returns the limit of one sandbox: the configured one, or less, so that capacity remains for
// others.
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

// lookUpCost is the number of descriptors for a name lookup: the resolver asks for both kinds of
// addresses at once.
const lookUpCost = 2

// Buffers of TCP connections, in bytes. A single connection may have large buffers, which makes it
// fast. The more connections there are, the less each newer one may grow. This limits the memory
// that a sandbox can fill by reading nothing.
const (
	bufferMin     = 4 << 10
	bufferDefault = 256 << 10
	bufferMax     = 4 << 20
	bufferLeast   = 32 << 10 // of a connection among very many
	bufferBudget  = 64 << 20 // of a sandbox; see bufferShare

	crowd = 64 // number of connections above which copies use small buffers
)

// bufferShare returns the maximum size of either buffer of a connection while n are open, as a
// power of two, so that it changes seldom. A sandbox with a thousand connections can hold some 220
// MiB, if it fills each before it opens the next.
func bufferShare(n int) int {
	share := bufferMax
	for share > bufferLeast && share*4*n > bufferBudget {
		share /= 2
	}
	return share
}
