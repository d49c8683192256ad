package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// mayOptions says why owner may not have a sandbox with such options of its engine's. Which options
// there are is the backend's to say, and that none opens the machine; but some say how others find
// a sandbox or come off beside it, and so they are asked for by who runs the daemon, and by others
// where its configuration says so.
func (o *Options) mayOptions(owner string, options []string) error {
	if owner == o.Owner {
		return nil
	}
	for _, option := range options {
		name, _, _ := strings.Cut(option, "=")
		if slices.Contains(o.Engine, name) || slices.Contains(o.Engine, option) {
			continue
		}
		name = oneLine(name, 60)
		return &wire.Error{Code: wire.CodeDenied, Message: fmt.Sprintf("engine option %s is here for %s alone to ask for", name, o.Owner),
			Hint: fmt.Sprintf("leave it out, or ask %s to list %s under the configuration key docker_options", o.Owner, name)}
	}
	return nil
}
