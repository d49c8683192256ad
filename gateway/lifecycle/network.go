package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxNameShown = 255
	// Bytes of why a connection failed; a name server of the sandbox can make it longer.
	maxWhy = 512
	// Connections written as events of a sandbox: a burst, and then so many a second. A sandbox can
	// make thousands.
	eventBurst, eventRate = 200, 20
)

// network carries the connections of one sandbox.
type network struct {
	egress.Carrier
	sb     *Sandbox
	broker *secret.Broker

	binding sync.Mutex // held while secrets or the policy are applied
	// Set while steps of a Dockerfile run: they get no secrets.
	building atomic.Bool

	mu     sync.Mutex
	events budget // guarded by mu; of events
}

// carry carries the connections of an instance until ctx ends.
func (n *network) carry(ctx context.Context, inst sandbox.Instance) {
	be, err := n.sb.reg.options.backend(inst.Backend)
	if err != nil || !inst.Network.Carried() {
		return
	}
	once := func(ctx context.Context) error { return n.proxy(ctx, inst) }
	if inst.Via != sandbox.ViaProxy {
		tunneler, ok := be.(sandbox.Networker)
		if !ok {
			return // the backend has rejected the mode
		}
		once = func(ctx context.Context) error { return n.packets(ctx, tunneler, inst) }
	}
	if n.sb.get().Instance.ID != "" { // otherwise it is being created, and has its secrets
		if err := n.bindSecrets(ctx); err != nil {
			n.sb.reg.log.Warn("secrets of a sandbox cannot be used", "id", n.sb.id, "err", err)
		}
	}
	n.Keep(ctx, n.sb.reg.log.With("id", n.sb.id), once)
}

// packets carries packets until the guest has gone or ctx ends; neither is an error.
func (n *network) packets(ctx context.Context, tunneler sandbox.Networker,
	inst sandbox.Instance) error {
	t, err := tunneler.Tunnel(ctx, inst)
	if err != nil {
		return err
	}
	return n.Packets(ctx, t.Device, t.Hold, n.options(inst.Network))
}

// proxy serves the proxy inside until the guest has gone or ctx ends; neither is an error.
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
		return fmt.Errorf("proxy on %s: %w; a program inside may use the port",
			reg.options.proxyAddress, err)
	}
	return n.Proxy(l, n.options(inst.Network))
}

// options returns the options of a stack or a proxy, with the policy at the time of the call.
func (n *network) options(mode sandbox.Network) func() (egress.Options, error) {
	return func() (egress.Options, error) {
		reg, f := n.sb.reg, n.sb.get()
		policy, err := reg.options.newPolicy(f.Owner, mode, f.Allow, n.broker.Hosts())
		return egress.Options{Policy: policy, Broker: n.serveBound,
			Budget: reg.accounts.connectionsOf(f.Owner), Connections: int(f.limits().Connections),
			Event: n.connected, Log: reg.log.With("id", n.sb.id)}, err
	}
}

// troubles returns the problems of the network, for people.
func (n *network) troubles() []string {
	if err := n.Trouble(); err != nil {
		return []string{"network down: " + firstLine(err)}
	}
	return nil
}

// connected handles an event of a sandbox's connections.
func (n *network) connected(e egress.Event) {
	n.sb.reg.counts.connection(e)
	host, port := e.Host, int(e.Addr.Port())
	if e.Kind == egress.KindRefused {
		n.sb.sessions.Blocked(wire.Denial{Host: live.Cut(host, maxNameShown), Port: port,
			Why: e.Why, Allow: e.Opens})
	}
	n.mu.Lock()
	report := n.events.take(time.Now())
	n.mu.Unlock()
	if !report {
		return
	}
	data := map[string]any{"what": e.Kind, "proto": e.Proto, "host": live.Cut(host, maxNameShown),
		"port": port}
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

// budget allows a burst, and then so many a second. The zero value is full.
type budget struct {
	spent float64
	at    time.Time
}

// take reports whether another one is allowed now.
func (g *budget) take(now time.Time) bool {
	g.spent = max(0, g.spent-now.Sub(g.at).Seconds()*eventRate)
	g.at = now
	if g.spent+1 > eventBurst {
		return false
	}
	g.spent++
	return true
}
