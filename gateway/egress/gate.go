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

// Causes of the end of connections, which their last events report.
var (
	errClosed  = errors.New("the sandbox's network was closed")
	errPolicy  = errors.New("no longer allowed")
	errEvicted = errors.New("too many flows at once")
	errIdle    = errors.New("idle")
)

// gate controls every connection of one sandbox, for Stack and Proxy: policy, budget and dialling.
type gate struct {
	opts  Options
	log   *slog.Logger
	names *directory
	own   ownAddresses
	most  int // limit of concurrent connections

	cancel context.CancelCauseFunc // ends every connection
	wg     sync.WaitGroup          // goroutines that serve connections

	crowded atomic.Bool // there are many connections, so copies use small buffers

	mu     sync.Mutex
	policy *Policy            // guarded by mu
	closed bool               // guarded by mu; nothing new may start
	flows  map[*flow]struct{} // guarded by mu
}

// newGate returns a gate, and the context of all its connections.
func newGate(opts Options) (*gate, context.Context, error) {
	if opts.Policy == nil {
		return nil, nil, errors.New("egress: Options.Policy is required")
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
	g := &gate{opts: opts, log: opts.Log, own: ownAddresses{ask: opts.Own},
		most:   opts.Budget.most(opts.Connections),
		policy: opts.Policy, flows: make(map[*flow]struct{})}
	g.names = newDirectory(g.resolve)
	ctx, cancel := context.WithCancelCause(context.Background())
	g.cancel = cancel
	return g, ctx, nil
}

// resolve looks up a name within the budget.
func (g *gate) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	budget := g.budget()
	if why := budget.take(lookUpCost); why != (refusal{}) {
		return nil, why
	}
	defer budget.give(lookUpCost)
	return g.opts.Resolve(ctx, name)
}

// SetPolicy sets the policy, also for open connections: those that it does not allow end with a
// reset.
func (g *gate) SetPolicy(p *Policy) {
	own := g.own.list()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policy = p
	for f := range g.flows {
		f.holdLocked(p, own)
	}
}

// SetBudget sets the budget of new connections. Open ones stay with theirs.
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

// current returns the current policy.
func (g *gate) current() *Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// begin reports whether a connection may start. If so, its caller calls wg.Done at the end.
func (g *gate) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Add(1)
	}
	return !g.closed
}

// end ends all connections and allows no new ones. The caller then waits for wg.
func (g *gate) end() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel(errClosed)
}

// admit counts f among the connections, or returns which limit is reached. An admitted flow must be
// dismissed.
func (g *gate) admit(f *flow) refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.flows) >= g.most {
		return refusal{limit: LimitSandbox,
			why: fmt.Sprintf("%d connections are open, the limit of this sandbox", g.most)}
	}
	if why := g.opts.Budget.take(1); why != (refusal{}) {
		return why
	}
	f.paid = g.opts.Budget
	g.flows[f] = struct{}{}
	g.crowded.Store(len(g.flows) > crowd)
	return refusal{}
}

// dismiss undoes admit. A second call does nothing.
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
