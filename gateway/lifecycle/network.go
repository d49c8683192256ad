package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxNameShown = 255
	maxWhy       = 512 // bytes of why a connection failed: who answers for a name says how many addresses fail
	// Connections that are written down as events of a sandbox: so many at once, and so many a
	// second. A sandbox can make thousands.
	eventBurst, eventRate = 200, 20
)

// network is what the daemon does for the connections of one sandbox.
type network struct {
	egress.Carrier
	sb *Sandbox

	mu   sync.Mutex
	told budget // guarded by mu; of events that are written down
}

// carry carries the connections of an instance of the sandbox until ctx ends.
func (n *network) carry(ctx context.Context, inst sandbox.Instance) {
	be, err := n.sb.reg.options.backend(inst.Backend)
	if err != nil || !inst.Network.Carried() {
		return
	}
	once := func(ctx context.Context) error { return n.proxy(ctx, inst) }
	if inst.Via != sandbox.ViaProxy {
		tunneler, ok := be.(sandbox.Networker)
		if !ok {
			return // such a backend has refused the mode
		}
		once = func(ctx context.Context) error { return n.packets(ctx, tunneler, inst) }
	}
	n.Keep(ctx, n.sb.reg.log.With("id", n.sb.id), once)
}

// packets carries packets until the guest has gone, or ctx ends: neither is an error.
func (n *network) packets(ctx context.Context, tunneler sandbox.Networker, inst sandbox.Instance) error {
	t, err := tunneler.Tunnel(ctx, inst)
	if err != nil {
		return err
	}
	return n.Packets(ctx, t.Device, t.Hold, n.options(inst.Network))
}

// proxy serves the proxy inside until the guest has gone, or ctx ends: neither is an error.
func (n *network) proxy(ctx context.Context, inst sandbox.Instance) error {
	reg := n.sb.reg
	conn, err := reg.pool.SSH(ctx, inst)
	if err != nil {
		return err
	}
	client := conn.Client()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	defer client.Close()
	l, err := client.Listen("tcp", reg.options.proxyAddress)
	if err != nil {
		return fmt.Errorf("no proxy on %s: %w; a program inside may have the port", reg.options.proxyAddress, err)
	}
	return n.Proxy(l, n.options(inst.Network))
}

// options returns those of a stack or a proxy, with the policy as it is when they are asked for.
func (n *network) options(mode sandbox.Network) func() (egress.Options, error) {
	return func() (egress.Options, error) {
		reg, f := n.sb.reg, n.sb.get()
		policy, err := reg.options.newPolicy(f.Owner, mode, f.Allow)
		return egress.Options{Policy: policy, Budget: reg.accounts.connectionsOf(f.Owner), Connections: int(f.limits().Connections),
			Event: n.connected, Log: reg.log.With("id", n.sb.id)}, err
	}
}

// troubles are what a person should know about the network.
func (n *network) troubles() []string {
	if err := n.Trouble(); err != nil {
		return []string{"no connection works: " + firstLine(err)}
	}
	return nil
}

// connected hears of a sandbox's connections.
func (n *network) connected(e egress.Event) {
	n.sb.reg.counts.connection(e)
	host, port := e.Host, int(e.Addr.Port())
	if e.Kind == egress.KindRefused {
		n.sb.sessions.Blocked(wire.Denial{Host: live.Cut(host, maxNameShown), Port: port, Why: e.Why, Allow: e.Opens})
	}
	n.mu.Lock()
	tell := n.told.take(time.Now())
	n.mu.Unlock()
	if !tell {
		return
	}
	data := map[string]any{"what": e.Kind, "proto": e.Proto, "host": live.Cut(host, maxNameShown), "port": port}
	if e.Addr.Addr().IsValid() && e.Addr.Addr().String() != host {
		data["address"] = e.Addr.Addr().String()
	}
	if e.Why != "" {
		data["why"] = live.Cut(e.Why, maxWhy)
	}
	if e.Kind == egress.KindClosed {
		data["sent"], data["received"] = e.Sent, e.Received
	}
	n.sb.reg.journal.add(n.sb.id, store.Connection, data)
}

// budget lets a burst of things through, and then so many a second. The zero value is full.
type budget struct {
	spent float64
	at    time.Time
}

func (g *budget) take(now time.Time) bool {
	g.spent = max(0, g.spent-now.Sub(g.at).Seconds()*eventRate)
	g.at = now
	if g.spent+1 > eventBurst {
		return false
	}
	g.spent++
	return true
}
