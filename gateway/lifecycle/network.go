package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/gateway/store"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// network is what the daemon does for the connections of one sandbox: it carries its packets while
// there is a stack, by a policy that may change meanwhile.
type network struct {
	mu      sync.Mutex // taken before box.mu
	stack   carrier    // guarded by mu; nil while nothing is carried
	trouble string     // guarded by mu; why nothing is carried; empty if there is no trouble
	told    budget     // guarded by mu; of events that are written down
}

// carrier is what carries a sandbox's connections: a stack for its packets, or a proxy.
type carrier interface {
	SetPolicy(*egress.Policy)
	SetBudget(*egress.Budget)
	Settle(context.Context)
	Close() error
}

const (
	maxNameShown = 255
	maxWhy       = 512 // bytes of why a connection failed: whoever answers for a name says how many addresses fail
	// A stack that cannot be had is tried again after a pause that doubles.
	firstCarry, lastCarry = 100 * time.Millisecond, 10 * time.Second
	// Connections that are written down as events of a sandbox: so many at once, and so many a
	// second. A sandbox can make thousands.
	eventBurst, eventRate = 200, 20
)

// maxSandboxConnections is how many connections all sandboxes may have together where the process
// could have more.
const maxSandboxConnections = 16384

// connectionBudget returns what sandboxes may have open together: what was asked for, and no more
// than half of what this process may have open, so that everybody else's logins, sessions and
// records go on.
func connectionBudget(asked int) (*egress.Budget, error) {
	var most syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &most); err != nil {
		return nil, fmt.Errorf("gateway: descriptors: %w", err)
	}
	half := int(min(most.Cur, 1<<30) / 2)
	if asked > half {
		return nil, fmt.Errorf("gateway: %d connections are more than half of the %d files that this process may have open", asked, most.Cur)
	}
	return egress.NewBudget(cmp.Or(asked, min(half, maxSandboxConnections))), nil
}

// connectionsOf is what an owner's sandboxes may have open together.
func (a *accounts) connectionsOf(owner string) *egress.Budget {
	a.mu.Lock()
	defer a.mu.Unlock()
	share := a.shares[owner]
	if share == nil {
		share = a.connections.Share(a.reg.options.Quota.Connections)
		a.shares[owner] = share // for good: there are as many as principals that ever had a sandbox
	}
	return share
}

// newPolicy is what a sandbox of owner's with that mode may connect to. What the daemon's own user
// lists is trusted: it is their machine that dials. What others listed opens nothing that is closed
// today, whatever it was when they listed it.
func (o *Options) newPolicy(owner string, mode sandbox.Network, allow []string) (*egress.Policy, error) {
	rules := egress.Rules{Mode: egress.Mode(mode), Trusted: o.Allow, Closed: o.Closed}
	if owner == o.Owner {
		rules.Trusted = slices.Concat(rules.Trusted, allow)
	} else {
		rules.Allow = allow
	}
	p, err := egress.NewPolicy(rules)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeUsage, Message: err.Error()}
	}
	return p, nil
}

// mayBridge says why p may not have a sandbox on the engine's own network, from which the daemon's
// machine itself is open.
func (o *Options) mayBridge(owner string, mode sandbox.Network) error {
	if mode != sandbox.NetworkBridge || o.Network == sandbox.NetworkBridge || owner == o.Owner || slices.Contains(o.Bridge, owner) {
		return nil
	}
	who := strings.Join(slices.Concat([]string{o.Owner}, o.Bridge), ", ")
	return &wire.Error{Code: wire.CodeDenied, Message: "network bridge opens the daemon's machine and its networks: here only " + who + " may ask for it",
		Hint: "leave --network out, or ask " + o.Owner + " to list you under the configuration key bridge"}
}

// openness orders the network modes by what they reach.
var openness = []sandbox.Network{sandbox.NetworkNone, sandbox.NetworkAllowlist, sandbox.NetworkFiltered, sandbox.NetworkBridge}

// MayNarrow says why a file for whose contents nobody here answers may not ask for the network and
// the limits of spec: it may ask for less than sandboxes have that ask for nothing, and never for
// more.
func (o *Options) MayNarrow(file string, spec NewSpec) error {
	limits := o.Limits.Or(sandbox.DefaultLimits)
	if over, ok := spec.Limits.Beyond(limits); ok {
		return &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf("%s asks for limits.%s %s: a file in a directory may ask for less than the daemon's configuration gives, %s, and not for more",
			file, over.Name, over.Text(spec.Limits), over.Text(limits)),
			Hint: fmt.Sprintf("take it out, set limits.%s in the daemon's configuration, or say it yourself: sandboxd new NAME --mount DIR --%[1]s …", over.Name)}
	}
	mode, allow, most := spec.Network, spec.Allow, o.Network
	refused := func(what string) error {
		return &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf("%s asks for %s: a file in a directory may ask for less than the daemon's configuration gives, network %s, and not for more", file, what, most),
			Hint: "take it out, or say it yourself: sandboxd new NAME --mount DIR --network …"}
	}
	if slices.Index(openness, cmp.Or(mode, most)) > slices.Index(openness, most) {
		return refused("network " + string(mode))
	}
	if most != sandbox.NetworkAllowlist && most != sandbox.NetworkNone {
		return nil
	}
	for _, text := range allow {
		listed := func(other string) bool {
			a, err := egress.Canonical(text)
			b, _ := egress.Canonical(other) // which was looked at when it was configured
			return err == nil && a == b
		}
		if !slices.ContainsFunc(o.Allow, listed) {
			return refused("allow " + oneLine(text, 200))
		}
	}
	return nil
}

// planNetwork refuses what no policy can be made of, before anything is made.
func (o *Options) planNetwork(owner string, spec NewSpec) error {
	if err := o.mayBridge(owner, spec.Network); err != nil {
		return err
	}
	if len(spec.Allow) == 0 {
		return nil
	}
	if !spec.Network.Carried() {
		return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("allow goes with network filtered or allowlist, not with %s", cmp.Or(spec.Network, sandbox.NetworkHost))}
	}
	return o.mayAllow(owner, spec.Network, spec.Allow)
}

// maxAllow is how many entries a sandbox's list may have.
const maxAllow = 1000

// mayAllow says why p may not allow that, or why nobody can. What is closed – the network of the
// daemon's machine – is opened by who runs the daemon alone: it is from there that a sandbox
// connects.
func (o *Options) mayAllow(owner string, mode sandbox.Network, allow []string) error {
	if len(allow) > maxAllow {
		return wire.Errorf(wire.CodeUsage, "%d entries to allow are more than %d", len(allow), maxAllow)
	}
	policy, err := o.newPolicy(owner, mode, allow)
	if err != nil {
		return err
	}
	own := egress.OwnAddresses()
	for _, entry := range allow {
		opens, err := policy.Opens(entry, own)
		if err != nil {
			return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("allow %q: %v", entry, err)}
		}
		if opens && owner != o.Owner {
			return &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf("allow %q: that is a closed range: only the daemon's own user opens one", entry),
				Hint: "name a public address, or ask " + o.Owner}
		}
	}
	return nil
}

// MayAllow says why the owner may not open entry to the sandbox, or nothing.
func (sb *Sandbox) MayAllow(entry string) error {
	f := sb.get()
	return sb.reg.options.mayAllow(f.Owner, f.Instance.Network, []string{entry})
}

// Allow opens entries, as of egress.Rules, to a sandbox that has a policy, from now on.
func (sb *Sandbox) Allow(ctx context.Context, by string, entries []string) (Info, error) {
	return sb.changeAllow(ctx, by, "allow", entries, func(f Record, entries []string) ([]string, error) {
		if err := sb.reg.options.mayAllow(f.Owner, f.Instance.Network, entries); err != nil {
			return nil, err
		}
		all := slices.Clone(f.Allow)
		for _, entry := range entries {
			if !slices.Contains(all, entry) {
				all = append(all, entry)
			}
		}
		if len(all) > maxAllow {
			return nil, wire.Errorf(wire.CodeUsage, "%d entries to allow are more than %d", len(all), maxAllow)
		}
		return all, nil
	})
}

// Disallow takes entries back that Allow, or the making of the sandbox, opened to it: all of them,
// or none when one is not there. Connections that nothing else allows end.
func (sb *Sandbox) Disallow(ctx context.Context, by string, entries []string) (Info, error) {
	return sb.changeAllow(ctx, by, "disallow", entries, func(f Record, entries []string) ([]string, error) {
		left := slices.Clone(f.Allow)
		for _, entry := range entries {
			at := slices.Index(left, entry)
			if at < 0 {
				return nil, &wire.Error{Code: wire.CodeNotFound, Message: fmt.Sprintf("%s is not among what sandbox %s is allowed", oneLine(entry, 200), f.Name),
					Hint: "see: sandboxd describe " + f.Name + "; what the daemon's configuration allows to all is taken back there"}
			}
			left = slices.Delete(left, at, at+1)
		}
		return left, nil
	})
}

// changeAllow makes what change returns the list of a sandbox. Entries and the list that
// change gets are canonical.
func (sb *Sandbox) changeAllow(ctx context.Context, by, act string, entries []string, change func(Record, []string) ([]string, error)) (Info, error) {
	reg := sb.reg
	entries, err := canonical(entries)
	if err != nil {
		return Info{}, err
	}
	if err := sb.lock(ctx); err != nil {
		return Info{}, err
	}
	defer sb.unlock()
	f := sb.get()
	if !f.Instance.Network.Carried() {
		return Info{}, &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("sandbox %s has network %s: there is nothing to allow", f.Name, f.Instance.Network),
			Hint: "make one with --network filtered or allowlist"}
	}
	if f.Allow, err = canonical(f.Allow); err != nil {
		return Info{}, err
	}
	all, err := change(f, entries)
	if err != nil {
		return Info{}, err
	}
	policy, err := reg.options.newPolicy(f.Owner, f.Instance.Network, all)
	if err != nil {
		return Info{}, err
	}
	if err := sb.become(ctx, func(f *Record) { f.Allow = all }); err != nil {
		return Info{}, err
	}
	reg.journal.add(sb.id, act, map[string]any{"by": by, "entries": entries})
	sb.network.use(policy)
	sb.sessions.Unblocked()
	return sb.Info(), nil
}

// canonical returns entries as they are compared.
func canonical(entries []string) ([]string, error) {
	out := make([]string, len(entries))
	for i, entry := range entries {
		var err error
		if out[i], err = egress.Canonical(entry); err != nil {
			return nil, &wire.Error{Code: wire.CodeUsage, Message: err.Error()}
		}
	}
	return out, nil
}

// use makes policy the one that holds.
func (n *network) use(policy *egress.Policy) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stack != nil {
		n.stack.SetPolicy(policy)
	}
}

// pays makes budget what new connections are taken of.
func (n *network) pays(budget *egress.Budget) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stack != nil {
		n.stack.SetBudget(budget)
	}
}

// carry carries the packets of a sandbox, whose instance inst is, until ctx ends.
func (sb *Sandbox) carry(ctx context.Context, inst sandbox.Instance) {
	be, err := sb.reg.options.backend(inst.Backend)
	if err != nil || !inst.Network.Carried() {
		return
	}
	once := func() error { return sb.proxyOnce(ctx, inst) }
	if inst.Via != sandbox.ViaProxy {
		tunneler, ok := be.(sandbox.Networker)
		if !ok {
			return // such a backend has refused the mode
		}
		once = func() error { return sb.carryOnce(ctx, tunneler, inst) }
	}
	for pause := firstCarry; ctx.Err() == nil; pause = min(2*pause, lastCarry) {
		began := time.Now()
		err := once()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			sb.reg.log.Warn("connections are not carried", "id", sb.id, "err", err)
		}
		if time.Since(began) > lastCarry {
			pause = firstCarry
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

// carryOnce carries packets until the guest has gone, which is no error, or ctx ends.
func (sb *Sandbox) carryOnce(ctx context.Context, tunneler sandbox.Networker, inst sandbox.Instance) (err error) {
	n := &sb.network
	defer func() { n.end(err) }()
	t, err := tunneler.Tunnel(ctx, inst)
	if err != nil {
		return err
	}
	defer t.Hold.Close()
	taken := false
	stack, err := begin(sb, inst.Network, func(o egress.Options) (*egress.Stack, error) {
		taken = true
		return egress.Start(t.Device, o)
	})
	if err != nil {
		if !taken {
			t.Device.Close()
		}
		return err
	}
	gone := make(chan struct{})
	go func() { // ends with Hold
		defer close(gone)
		_, _ = io.Copy(io.Discard, t.Hold) // it says nothing: its end says that the guest has gone
	}()
	select {
	case <-gone:
	case <-stack.Done(): // the guest may have another one
	case <-ctx.Done():
	}
	t.Hold.Close()
	<-gone
	n.mu.Lock()
	n.stack = nil // before it is closed: nobody changes its policy any more
	n.mu.Unlock()
	return stack.Close()
}

// proxyOnce serves the proxy inside until the guest has gone, or ctx ends: both are no error.
func (sb *Sandbox) proxyOnce(ctx context.Context, inst sandbox.Instance) (err error) {
	n := &sb.network
	defer func() { n.end(err) }()
	conn, err := sb.reg.pool.SSH(ctx, inst)
	if err != nil {
		return err
	}
	client := conn.Client()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	defer client.Close()
	l, err := client.Listen("tcp", sb.reg.options.proxyAddress)
	if err != nil {
		return fmt.Errorf("no proxy on %s: %w; a program inside may have the port", sb.reg.options.proxyAddress, err)
	}
	proxy, err := begin(sb, inst.Network, egress.NewProxy)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil { // the connection has ended, and with it the listener
			break
		}
		wg.Go(func() { proxy.Serve(c) })
	}
	n.mu.Lock()
	n.stack = nil // before it is closed: nobody changes its policy any more
	n.mu.Unlock()
	err = proxy.Close()
	wg.Wait()
	return err
}

// begin starts what carries connections, with the policy as it is now.
func begin[C carrier](sb *Sandbox, mode sandbox.Network, start func(egress.Options) (C, error)) (c C, err error) {
	n := &sb.network
	n.mu.Lock()
	defer n.mu.Unlock() // whoever changes the policy meanwhile waits, and then finds the carrier
	f := sb.get()
	policy, err := sb.reg.options.newPolicy(f.Owner, mode, f.Allow)
	if err != nil {
		return c, err
	}
	c, err = start(egress.Options{Policy: policy, Budget: sb.reg.accounts.connectionsOf(f.Owner), Connections: int(f.limits().Connections),
		Event: sb.connected, Log: sb.reg.log.With("id", sb.id)})
	if err != nil {
		return c, err
	}
	n.stack, n.trouble = c, ""
	return c, nil
}

// end notes that nothing is carried, and why.
func (n *network) end(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stack, n.trouble = nil, ""
	if err != nil && !errors.Is(err, context.Canceled) {
		n.trouble = firstLine(err)
	}
}

// isUp reports whether something carries the connections.
func (n *network) isUp() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stack != nil
}

// notes are what a person should know about the network.
func (n *network) notes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.trouble == "" {
		return nil
	}
	return []string{"no connection works: " + n.trouble}
}

// connected hears of a sandbox's connections.
func (sb *Sandbox) connected(e egress.Event) {
	sb.reg.counts.connection(e)
	host, port := e.Host, int(e.Addr.Port())
	if e.Kind == egress.KindRefused {
		sb.sessions.Blocked(wire.Denial{Host: live.Cut(host, maxNameShown), Port: port, Why: e.Why, Allow: e.Opens})
	}
	n := &sb.network
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
	sb.reg.journal.add(sb.id, store.Connection, data)
}

// maxSettle is longer than a stack needs unless the sandbox keeps it from reading.
const maxSettle = time.Second

// settle waits until every connection that the sandbox has made so far was judged, for at most
// maxSettle.
func (n *network) settle(ctx context.Context) {
	n.mu.Lock()
	stack := n.stack
	n.mu.Unlock()
	if stack == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxSettle)
	defer cancel()
	stack.Settle(ctx)
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
