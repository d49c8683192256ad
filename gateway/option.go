package gateway

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// mayOptions says why p may not have a sandbox with such options of its engine's. Which options
// there are is the backend's to say, and that none opens the machine; but some say how others find
// a sandbox or come off beside it, and so they are asked for by who runs the daemon, and by others
// where its configuration says so.
func (h *Hub) mayOptions(p Principal, options []string) error {
	if p.Name == h.options.Owner {
		return nil
	}
	for _, option := range options {
		name, _, _ := strings.Cut(option, "=")
		if slices.Contains(h.options.Engine, name) || slices.Contains(h.options.Engine, option) {
			continue
		}
		name = oneLine(name, 60)
		return &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf("engine option %s is here for %s alone to ask for", name, h.options.Owner),
			Hint: fmt.Sprintf("leave it out, or ask %s to list %s under the configuration key docker_options", h.options.Owner, name)}
	}
	return nil
}
