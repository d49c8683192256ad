package gateway

import "github.com/sandboxd/sandboxd/gateway/lifecycle"

// Registry returns the sandboxes of the hub.
func (h *Hub) Registry() *lifecycle.Registry { return h.registry }
