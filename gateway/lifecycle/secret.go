package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// SecretChange is what a change of a secret did.
type SecretChange struct {
	secret.Secret
	AppliesTo []string `json:"applies_to"` // existing sandboxes that use it now, or no longer
	Notes     []string `json:"notes"`      // why others do not
}

// Secrets returns the secrets of owner, by name.
func (reg *Registry) Secrets(owner string) []secret.Info { return reg.options.Secrets.List(owner) }

// SetSecret adds or replaces a secret, and applies it to the sandboxes of its owner. Only the admin
// may name a command, which runs on this machine. It fails if a sandbox that the secret names
// cannot use it.
func (reg *Registry) SetSecret(ctx context.Context, s secret.Secret, v secret.Value) (SecretChange,
	error) {
	if s.Source.Kind == secret.KindCmd {
		if s.Owner != reg.options.Owner {
			return SecretChange{}, &wire.Error{Code: wire.CodeDenied,
				Message: "secret: only the admin may use --from-cmd: the command runs on the " +
					"daemon's machine",
				Hint: "pass the value on standard input"}
		}
		if err := secret.CheckCommand(s.Source.From); err != nil {
			return SecretChange{}, err
		}
	}
	for _, name := range s.Sandboxes {
		if sb := reg.Find(name); sb != nil && sb.Owner() == s.Owner {
			if why := reg.options.whyNoSecrets(sb.get()); why != "" {
				return SecretChange{}, cannotUse(name, s.Name, why)
			}
		}
	}
	s, err := reg.options.Secrets.Set(s, v)
	if err != nil {
		return SecretChange{}, err
	}
	return reg.applySecret(ctx, s)
}

// RemoveSecret removes a secret, also from open connections.
func (reg *Registry) RemoveSecret(ctx context.Context, owner, name string) (SecretChange, error) {
	s, err := reg.options.Secrets.Remove(owner, name)
	if err != nil {
		return SecretChange{}, err
	}
	return reg.applySecret(ctx, s)
}

// applySecret applies the secrets of the owner of s to all of the owner's sandboxes. It reports on
// those that s is for.
func (reg *Registry) applySecret(ctx context.Context, s secret.Secret) (SecretChange, error) {
	c := SecretChange{Secret: s, AppliesTo: []string{}, Notes: []string{}}
	all := reg.All()
	slices.SortFunc(all, func(a, b *Sandbox) int { return strings.Compare(a.Name(), b.Name()) })
	all = slices.DeleteFunc(all, func(sb *Sandbox) bool {
		f := sb.get()
		return f.Owner != s.Owner || f.State == Deleting || f.State == Lost || f.Instance.ID == ""
	})
	// At once: a sandbox that does not answer must not delay what another one loses.
	errs := make([]error, len(all))
	var bound sync.WaitGroup
	for i, sb := range all {
		bound.Go(func() { errs[i] = sb.network.bindSecrets(ctx) })
	}
	bound.Wait()
	for i, sb := range all {
		f, err := sb.get(), errs[i]
		why := reg.options.whyNoSecrets(f)
		switch {
		case len(s.Sandboxes) > 0 && !slices.Contains(s.Sandboxes, f.Name):
		case err != nil:
			c.Notes = append(c.Notes, fmt.Sprintf("sandbox %s: %s", f.Name,
				oneLine(reg.Public(err).Message, 300)))
		case why != "":
			c.Notes = append(c.Notes, fmt.Sprintf("sandbox %s cannot use it: %s", f.Name, why))
		default:
			c.AppliesTo = append(c.AppliesTo, f.Name)
		}
	}
	for _, name := range s.Sandboxes {
		if sb := reg.Find(name); sb == nil || sb.Owner() != s.Owner {
			c.Notes = append(c.Notes, fmt.Sprintf("sandbox %s does not exist yet: new applies it",
				name))
		}
	}
	return c, nil
}

// whyNoSecrets returns why a sandbox cannot use secrets, or "".
func (o *Options) whyNoSecrets(f Record) string {
	mode := f.Instance.Network
	if f.Instance.ID == "" {
		mode = f.Spec.Network
	}
	be := o.Backends[f.Instance.Backend]
	_, trusts := be.(sandbox.Truster)
	switch {
	case f.NoSecrets:
		return "it was created without them"
	case f.Host.URI != "":
		return "it is an ssh host, whose connections the daemon does not carry"
	case mode == sandbox.NetworkNone:
		return "network none has no connections"
	case !mode.Carried():
		return fmt.Sprintf("the daemon does not carry the connections of network %s", mode)
	case f.Trust == sandbox.TrustImage:
		return "with trust image, its programs do not trust the daemon's certificates"
	case !trusts:
		return "its backend cannot change which certificates programs trust"
	}
	return ""
}

func cannotUse(sandbox, name, why string) error {
	return &wire.Error{Code: wire.CodeUsage,
		Message: fmt.Sprintf("sandbox %s cannot use secret %s: %s", sandbox, name, why),
		Hint:    "secrets need network filtered or allowlist, and trust host"}
}

// planSecrets returns an error if a secret names a new sandbox that cannot use secrets.
func (o *Options) planSecrets(owner, name string, spec NewSpec) error {
	f := Record{Asked: Asked{Spec: sandbox.Spec{Network: spec.Network, Trust: spec.Trust,
		Host: spec.Host}}, Instance: sandbox.Instance{Backend: spec.Backend}}
	why := o.whyNoSecrets(f)
	if why == "" {
		return nil
	}
	for _, b := range o.Secrets.For(owner, name) {
		if b.Named {
			return cannotUse(name, b.Secret, why)
		}
	}
	return nil
}

// newBroker returns the broker of the sandbox id, whose network is n. What it refuses and what
// fails are events of the sandbox's connections.
func newBroker(reg *Registry, id string, n *network) *secret.Broker {
	report := func(kind egress.Kind) func(host, why string) {
		return func(host, why string) {
			n.connected(egress.Event{Kind: kind, Proto: "https", Host: host,
				Addr: netip.AddrPortFrom(netip.Addr{}, 443), Why: why})
		}
	}
	return secret.NewBroker(secret.BrokerOptions{Roots: reg.options.Roots,
		Seed:   reg.options.Secrets.Seed(id),
		Denied: report(egress.KindRefused), Failed: report(egress.KindFailed)})
}

// serveBound serves a connection to the host of a secret.
func (n *network) serveBound(ctx context.Context, host string, conn net.Conn,
	dial func(context.Context) (net.Conn, error)) {
	n.broker.Serve(ctx, host, conn, dial)
}

// bound returns the bindings for the sandbox.
func (n *network) bound(f Record) []secret.Bound {
	if f.isPooled() || n.building.Load() || n.sb.reg.options.whyNoSecrets(f) != "" {
		return nil
	}
	return n.sb.reg.options.Secrets.For(f.Owner, f.Name)
}

// secrets returns the names of the secrets that the sandbox uses.
func (n *network) secrets(f Record) (names []string) {
	for _, b := range n.bound(f) {
		names = append(names, b.Secret)
	}
	return slices.Compact(names)
}

// bindFirst applies the secrets to a sandbox that is not booted yet, and returns the certificate
// authority that it needs.
func (n *network) bindFirst() ([]byte, error) {
	n.binding.Lock()
	defer n.binding.Unlock()
	return n.broker.Bind(n.bound(n.sb.get()))
}

// trustWithin bounds a change of the certificates that programs of a sandbox trust. A guest may not
// answer.
const trustWithin = 5 * time.Second

// bindSecrets applies the current secrets: to the broker, the certificates that programs trust, and
// the network policy. If the certificates cannot be changed, it returns an error; the hosts are
// bound in any case.
func (n *network) bindSecrets(ctx context.Context) error {
	n.binding.Lock()
	defer n.binding.Unlock()
	f := n.sb.get()
	ca, err := n.broker.Bind(n.bound(f))
	if err != nil {
		return err
	}
	// Before the guest is asked: a connection that may no longer be is cut now.
	refreshed := n.refreshLocked()
	if be, ok := n.sb.reg.options.Backends[f.Instance.Backend].(sandbox.Truster); ok &&
		f.Instance.Network.Carried() {
		within, cancel := context.WithTimeoutCause(ctx, trustWithin,
			errors.New("the sandbox does not answer"))
		err = be.Trust(within, f.Instance, ca)
		cancel()
		if errors.Is(err, sandbox.ErrUnsupported) {
			if err = nil; ca != nil {
				err = &wire.Error{Code: wire.CodeUnavailable, Message: "its programs cannot " +
					"trust the daemon's certificates: it has to be created anew"}
			}
		}
	}
	return errors.Join(err, refreshed)
}

// refresh applies the current network policy.
func (n *network) refresh() error {
	n.binding.Lock()
	defer n.binding.Unlock()
	return n.refreshLocked()
}

// refreshLocked is refresh. The caller holds binding.
func (n *network) refreshLocked() error {
	f := n.sb.get()
	if !f.Instance.Network.Carried() {
		return nil
	}
	policy, err := n.sb.reg.options.newPolicy(f.Owner, f.Instance.Network, f.Allow,
		n.broker.Hosts())
	if err != nil {
		return err
	}
	n.SetPolicy(policy)
	return nil
}
