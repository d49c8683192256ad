package gateway

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/gateway/secret"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Secrets returns p's secrets, by name, without their values.
func (h *Hub) Secrets(_ context.Context, p Principal) []secret.Info {
	return h.registry.Secrets(p.Name)
}

// SetSecret adds or replaces a secret of p, and applies it to p's sandboxes. Keys of agents may not
// name a command, because it runs on the daemon's machine.
func (h *Hub) SetSecret(ctx context.Context, p Principal, s secret.Secret,
	v secret.Value) (lifecycle.SecretChange, error) {
	if err := p.mayMake("changing secrets"); err != nil {
		return lifecycle.SecretChange{}, err
	}
	if s.Source.Kind == secret.KindCmd && p.Kind == wire.Agent {
		return lifecycle.SecretChange{}, &wire.Error{Code: wire.CodeDenied,
			Message: "secret: the key of an agent may not use --from-cmd: the command runs on the " +
				"daemon's machine",
			Hint: "use a key without kind=\"agent\""}
	}
	s.Owner = p.Name
	return h.registry.SetSecret(ctx, s, v)
}

// RemoveSecret removes a secret of p, also from open connections.
func (h *Hub) RemoveSecret(ctx context.Context, p Principal,
	name string) (lifecycle.SecretChange, error) {
	if err := p.mayMake("changing secrets"); err != nil {
		return lifecycle.SecretChange{}, err
	}
	return h.registry.RemoveSecret(ctx, p.Name, name)
}
