package gateway

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Attention returns what p's sessions need, and those of sandboxes that are shared with it, by
// sandbox and session, from what is known already. name is a sandbox, or empty for all.
func (h *Hub) Attention(_ context.Context, p Principal, name string) ([]attention.Need, error) {
	if name != "" {
		if _, _, err := h.reachable(p, name, wire.RightWatch, ""); err != nil {
			return nil, err
		}
	}
	return h.board.List(p.Name, name), nil
}

// WatchAttention follows the sessions of p, and those of sandboxes that are shared with it. The
// caller closes the watch.
func (h *Hub) WatchAttention(p Principal) *attention.Watch { return h.board.Watch(p.Name) }

// HookCounts returns the outcomes of the hook's calls so far.
func (h *Hub) HookCounts() attention.HookCounts { return h.hook.Counts() }

// attended lists the sessions that principal may see; of all principals if it is empty.
func (h *Hub) attended(principal string) (all []attention.Session) {
	for _, b := range h.all() {
		f := b.get()
		if rights, _ := b.rightsOf(principal); f.isPooled() || principal != "" && rights == "" {
			continue
		}
		for _, l := range b.sessions.All() {
			if !l.Final() {
				all = append(all, attention.Session{Sandbox: f.name, Owner: f.owner, ID: b.id, Name: l.Name(), Brief: l.Brief(), Need: l.Need})
			}
		}
	}
	return all
}
