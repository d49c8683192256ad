package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/sandboxd/sandboxd/gateway/egress"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
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
