package lifecycle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxSandboxConnections is the default limit of open connections of all sandboxes.
const maxSandboxConnections = 16384

// connectionBudget returns the connections that all sandboxes may have open together. At most half
// of this process's files are used, so that logins, sessions and records still work.
func connectionBudget(asked int) (*egress.Budget, error) {
	most := admission.MaxFiles()
	if most == 0 {
		return nil, errors.New("gateway: descriptors: their limit is unknown")
	}
	half := int(most / 2)
	if asked > half {
		return nil, fmt.Errorf("gateway: connections: %d is more than half of the %d files that "+
			"this process may open", asked, most)
	}
	return egress.NewBudget(cmp.Or(asked, min(half, maxSandboxConnections))), nil
}

// connectionsOf returns what an owner's sandboxes may have open together.
func (a *accounts) connectionsOf(owner string) *egress.Budget {
	a.mu.Lock()
	defer a.mu.Unlock()
	share := a.shares[owner]
	if share == nil {
		share = a.connections.Share(a.options.quota.Connections)
		a.shares[owner] = share // kept indefinitely: there is one for each owner
	}
	return share
}

// newPolicy returns the network policy of an owner's sandbox. Entries of the admin are trusted,
// because the admin's machine dials. Entries of others never open an address that is closed, even
// if it was public when they were added. bound are the hosts of its secrets.
func (o *Options) newPolicy(owner string, mode sandbox.Network,
	allow, bound []string) (*egress.Policy, error) {
	rules := egress.Rules{Mode: egress.Mode(mode), Trusted: o.Allow, Closed: o.Closed, Bound: bound}
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

// mayBridge returns an error unless owner may use the engine's own network, which reaches the
// daemon's machine.
func (o *Options) mayBridge(owner string, mode sandbox.Network) error {
	if mode != sandbox.NetworkBridge || o.Network == sandbox.NetworkBridge || owner == o.Owner ||
		slices.Contains(o.Bridge, owner) {
		return nil
	}
	who := strings.Join(slices.Concat([]string{o.Owner}, o.Bridge), ", ")
	return &wire.Error{Code: wire.CodeDenied,
		Message: "network bridge reaches the daemon's machine and its networks: only " + who +
			" may use it",
		Hint: "leave --network out, or ask " + o.Owner +
			" to list you under the configuration key bridge"}
}

// openness orders the network modes by what they reach.
var openness = []sandbox.Network{sandbox.NetworkNone, sandbox.NetworkAllowlist,
	sandbox.NetworkFiltered, sandbox.NetworkBridge}

// MayNarrow returns nil if an untrusted file may ask for the network and the limits of spec: less
// than the daemon's defaults, never more.
func (o *Options) MayNarrow(file string, spec NewSpec) error {
	limits := o.Limits.Or(sandbox.DefaultLimits)
	if over, ok := spec.Limits.Beyond(limits); ok {
		return &wire.Error{Code: wire.CodeDenied,
			Message: fmt.Sprintf("%s asks for limits.%s %s: a sandbox file may not exceed the "+
				"daemon's default, %s",
				file, over.Name, over.Text(spec.Limits), over.Text(limits)),
			Hint: fmt.Sprintf("remove it, set limits.%s in the daemon's configuration, or pass "+
				"it yourself: sandboxd new NAME --mount DIR --%[1]s …", over.Name)}
	}
	mode, allow, most := spec.Network, spec.Allow, o.Network
	refused := func(what string) error {
		return &wire.Error{Code: wire.CodeDenied,
			Message: fmt.Sprintf("%s asks for %s: a sandbox file may not exceed the daemon's "+
				"default, network %s", file, what, most),
			Hint: "remove it, or pass it yourself: sandboxd new NAME --mount DIR --network …"}
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
			b, _ := egress.Canonical(other) // checked by New
			return err == nil && a == b
		}
		if !slices.ContainsFunc(o.Allow, listed) {
			return refused("allow " + oneLine(text, 200))
		}
	}
	return nil
}

// planNetwork checks the network of a spec before anything is created.
func (o *Options) planNetwork(owner string, spec NewSpec) error {
	if err := o.mayBridge(owner, spec.Network); err != nil {
		return err
	}
	if len(spec.Allow) == 0 {
		return nil
	}
	if !spec.Network.Carried() {
		return &wire.Error{Code: wire.CodeUsage,
			Message: fmt.Sprintf("allow requires network filtered or allowlist, not %s",
				cmp.Or(spec.Network, sandbox.NetworkHost))}
	}
	return o.mayAllow(owner, spec.Network, spec.Allow)
}

// maxAllow bounds the entries of a sandbox's allow list.
const maxAllow = 1000

// mayAllow returns an error unless owner may add the entries. Only the admin may open closed
// ranges, the networks of the daemon's machine, because sandboxes connect from there.
func (o *Options) mayAllow(owner string, mode sandbox.Network, allow []string) error {
	if len(allow) > maxAllow {
		return wire.Errorf(wire.CodeUsage, "allow: %d entries; the limit is %d", len(allow),
			maxAllow)
	}
	policy, err := o.newPolicy(owner, mode, allow, nil)
	if err != nil {
		return err
	}
	own := egress.OwnAddresses()
	for _, entry := range allow {
		opens, err := policy.Opens(entry, own)
		if err != nil {
			return &wire.Error{Code: wire.CodeUsage, Message: fmt.Sprintf("allow %q: %v", entry,
				err)}
		}
		if opens && owner != o.Owner {
			return &wire.Error{Code: wire.CodeDenied,
				Message: fmt.Sprintf("allow %q: closed range: only the admin may open it", entry),
				Hint:    "name a public address, or ask " + o.Owner}
		}
	}
	return nil
}

// canonical returns entries in the form in which they are compared.
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
