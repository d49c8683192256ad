package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
)

// flow is one connection, from the admission of its target to its end.
type flow struct {
	proto string
	name  string // requested name; empty for an address
	port  uint16
	end   context.CancelCauseFunc
	// Through the broker: the program's connection to it, or its own to the server.
	brokered bool

	sent, received atomic.Int64

	addr netip.AddrPort // guarded by gate.mu; dialled address, invalid before
	said string         // guarded by gate.mu; the server name in the program's data
	paid *Budget        // guarded by gate.mu; the budget that it was taken from
}

// refusal is why this package blocks a connection. The zero value means that it does not.
type refusal struct {
	why   string
	opens string // the entry that allows it, if its author may list it; empty if none does
	limit Limit  // that is exceeded; empty if none
}

func (r refusal) Error() string { return r.why }

// host returns the target as people know it.
func (f *flow) host(asked netip.AddrPort) string {
	if f.name != "" {
		return f.name
	}
	return asked.Addr().String()
}

// holdLocked ends f unless p allows it. A flow that is not dialled yet checks the policy
// afterwards. The caller holds gate.mu.
func (f *flow) holdLocked(p *Policy, own []netip.Prefix) {
	switch {
	case f.bindingChanged(p), f.addr.IsValid() && f.whyNotLocked(p, own) != (refusal{}):
		f.end(errPolicy)
	}
}

// bindingChanged reports whether p wants f to be brokered and it is not, or the reverse.
func (f *flow) bindingChanged(p *Policy) bool {
	return f.name != "" && f.brokered != p.isBound(f.name, f.port)
}

func (f *flow) whyNotLocked(p *Policy, own []netip.Prefix) refusal {
	if f.bindingChanged(p) {
		return refusal{why: "a secret was bound or removed meanwhile"}
	}
	if f.name != "" {
		if why := p.refusesName(f.name, f.port); why != (refusal{}) {
			return why
		}
	}
	if why := p.refuses(f.name, f.addr, own); why != (refusal{}) {
		return why
	}
	if f.said != "" && f.said != f.name && p.comparesNames(f.name, f.addr) &&
		!p.mayMean(f.said, f.port) {
		return refusal{why: notListed, opens: entryText(f.said, f.port)}
	}
	return refusal{}
}

// target returns the name that asked represents, and why it is blocked as far as that is known
// without a lookup.
func (s *Stack) target(asked netip.AddrPort) (name string, why refusal) {
	switch {
	case asked.Addr() == DNSAddr:
		return "", refusal{why: "answers DNS only"}
	case !Names.Contains(asked.Addr()):
		return "", s.current().refuses("", asked, s.own.list())
	}
	name, ok := s.names.name(asked.Addr())
	if !ok {
		return "", refusal{why: "no longer represents a name: look the name up again"}
	}
	return name, s.current().refusesName(name, asked.Port())
}

// open dials f's target if the policy allows it, and reports the event either way. ctx bounds the
// dial. If the policy allows no address of a name, nothing is dialled.
func (g *gate) open(ctx context.Context, f *flow, asked netip.AddrPort) (net.Conn, error) {
	conn, addr, err := g.dial(ctx, f, asked)
	event := Event{Kind: KindOpened, Proto: f.proto, Host: f.host(asked), Addr: addr}
	if err != nil {
		event.Kind, event.Why = KindFailed, err.Error()
		if r, ok := errors.AsType[refusal](err); ok {
			event.Kind, event.Opens = KindRefused, r.opens
		} else if cause := context.Cause(ctx); cause != nil {
			event.Why = cause.Error()
		}
	}
	g.event(event)
	return conn, err
}

func (g *gate) dial(ctx context.Context, f *flow, asked netip.AddrPort) (net.Conn, netip.AddrPort,
	error) {
	ctx, cancel := context.WithTimeoutCause(
		ctx, dialTimeout, fmt.Errorf("no answer in %v", dialTimeout))
	defer cancel()
	candidates := []netip.AddrPort{asked}
	if f.name != "" {
		real, _, err := g.names.addresses(ctx, f.name)
		switch {
		case err != nil:
			return nil, netip.AddrPort{}, err
		case len(real) == 0:
			return nil, netip.AddrPort{}, errors.New("no such name")
		}
		candidates = candidates[:0]
		for _, a := range real {
			candidates = append(candidates, netip.AddrPortFrom(a.Unmap(), f.port))
		}
	}
	policy, own := g.current(), g.own.list()
	var open []netip.AddrPort
	var why refusal
	for _, c := range candidates {
		if w := policy.refuses(f.name, c, own); w == (refusal{}) {
			open = append(open, c)
		} else if why == (refusal{}) {
			why = w
		}
	}
	if len(open) == 0 {
		return nil, candidates[0], why
	}
	conn, addr, err := dialAny(ctx, g.opts.Dial, g.budget(), f.proto, open)
	if err != nil {
		return nil, addr, err
	}
	g.mu.Lock()
	f.addr = addr
	why = f.whyNotLocked(g.policy, own) // the policy may have changed
	g.mu.Unlock()
	if why != (refusal{}) {
		_ = conn.Close()
		return nil, addr, why
	}
	return conn, addr, nil
}

// ended dismisses f, which was open, and reports its end.
func (g *gate) ended(ctx context.Context, f *flow, asked netip.AddrPort) {
	g.dismiss(f)
	e := Event{Kind: KindClosed, Proto: f.proto, Host: f.host(asked), Addr: f.addr,
		Sent: f.sent.Load(), Received: f.received.Load()}
	// The end of a flow alone is no reason.
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		e.Why = cause.Error()
	}
	g.event(e)
}

// onEnd calls f when ctx ends. stop cancels that, or waits until f has returned. If ctx has ended
// by then, f was called in any case.
func onEnd(ctx context.Context, f func()) (stop func()) {
	done := make(chan struct{})
	undo := context.AfterFunc(ctx, func() {
		defer close(done)
		f()
	})
	return func() {
		switch {
		case !undo():
			<-done
		case ctx.Err() != nil: // f was about to be called
			f()
		}
	}
}
