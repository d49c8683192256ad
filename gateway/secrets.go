package gateway

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Secrets are the credentials that sandboxes of a hub use and never hold.
type Secrets struct{ hub *Hub }

// List returns p's secrets, by name, without their values.
func (s *Secrets) List(p Principal) []secret.Info { return s.hub.registry.Secrets(p.Name) }

// Set adds or replaces a secret of p, and applies it to p's sandboxes. Keys of agents may not
// name a command, because it runs on the daemon's machine.
func (s *Secrets) Set(ctx context.Context, p Principal, one secret.Secret,
	v secret.Value) (lifecycle.SecretChange, error) {
	if err := p.mayMake("changing secrets"); err != nil {
		return lifecycle.SecretChange{}, err
	}
	if one.Source.Kind == secret.KindCmd && p.Kind == wire.Agent {
		return lifecycle.SecretChange{}, &wire.Error{Code: wire.CodeDenied,
			Message: "secret: the key of an agent may not use --from-cmd: the command runs on the " +
				"daemon's machine",
			Hint: "use a key without kind=\"agent\""}
	}
	one.Owner = p.Name
	return s.hub.registry.SetSecret(ctx, one, v)
}

// Remove removes a secret of p, also from open connections.
func (s *Secrets) Remove(ctx context.Context, p Principal,
	name string) (lifecycle.SecretChange, error) {
	if err := p.mayMake("changing secrets"); err != nil {
		return lifecycle.SecretChange{}, err
	}
	return s.hub.registry.RemoveSecret(ctx, p.Name, name)
}
