package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Causes with which connections end, and what their last event says.
var (
	errClosed  = errors.New("the sandbox's network was closed")
	errPolicy  = errors.New("no longer allowed")
	errEvicted = errors.New("too many flows at once")
	errIdle    = errors.New("idle")
)

// gate is what every connection of one sandbox passes, by whichever way it comes: the policy, the budget, and the dialling.
type gate struct {
	opts  Options
	log   *slog.Logger
	names *directory
	own   ownAddresses
	most  int // connections at once

	cancel context.CancelCauseFunc // ends every connection
	wg     sync.WaitGroup          // of all goroutines that serve one

	crowded atomic.Bool // there are so many that each copies in small pieces

	mu     sync.Mutex
	policy *Policy            // guarded by mu
	closed bool               // guarded by mu: nothing new begins
	flows  map[*flow]struct{} // guarded by mu
}

// newGate returns a gate and the context of all that goes through it.
func newGate(opts Options) (*gate, context.Context, error) {
	if opts.Policy == nil {
		return nil, nil, errors.New("egress: a network needs a policy")
	}
	if opts.Resolve == nil {
		opts.Resolve = lookUp
	}
	if opts.Dial == nil {
		opts.Dial = new(net.Dialer).DialContext
	}
	if opts.Own == nil {
		opts.Own = OwnAddresses
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	g := &gate{opts: opts, log: opts.Log, own: ownAddresses{ask: opts.Own}, most: opts.Budget.most(opts.Connections),
		policy: opts.Policy, flows: make(map[*flow]struct{})}
	g.names = newDirectory(g.resolve)
	ctx, cancel := context.WithCancelCause(context.Background())
	g.cancel = cancel
	return g, ctx, nil
}

// resolve looks a name up within the budget.
func (g *gate) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	budget := g.budget()
	if why := budget.take(lookUpCost); why != (refusal{}) {
		return nil, why
	}
	defer budget.give(lookUpCost)
	return g.opts.Resolve(ctx, name)
}

// SetPolicy makes p hold for what is open too: connections that it does not allow end with a reset.
func (g *gate) SetPolicy(p *Policy) {
	own := g.own.list()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy = p
	for f := range g.flows {
		f.holdLocked(p, own)
	}
}

// SetBudget makes b what new connections are taken of; those that are open stay of what they were.
func (g *gate) SetBudget(b *Budget) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opts.Budget = b
}

func (g *gate) budget() *Budget {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opts.Budget
}

// current returns the policy that holds now.
func (g *gate) current() *Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// begin says whether something new may start; whoever it told so calls wg.Done after.
func (g *gate) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Add(1)
	}
	return !g.closed
}

// end ends everything that began, and lets nothing more begin. Who calls it waits for wg.
func (g *gate) end() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel(errClosed)
}

// admit counts f among the connections, unless there are too many: then it says so. What was admitted is dismissed.
func (g *gate) admit(f *flow) refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.flows) >= g.most {
		return refusal{limit: LimitSandbox, why: fmt.Sprintf("%d connections are open already, as many as this sandbox may have", g.most)}
	}
	if why := g.opts.Budget.take(1); why != (refusal{}) {
		return why
	}
	f.paid = g.opts.Budget
	g.flows[f] = struct{}{}
	g.crowded.Store(len(g.flows) > crowd)
	return refusal{}
}

// dismiss gives back what admit took. What was given back is not given back again.
func (g *gate) dismiss(f *flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.flows[f]; !ok {
		return
	}
	delete(g.flows, f)
	g.crowded.Store(len(g.flows) > crowd)
	f.paid.give(1)
}

func (g *gate) event(e Event) {
	if g.opts.Event != nil {
		e.Time = time.Now()
		g.opts.Event(e)
	}
}
