package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// mayOptions returns an error unless owner may use these engine options. The backend accepts only
// options that do not open the machine. Some still affect other sandboxes, so others than the admin
// need a permission in the configuration.
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
		return &wire.Error{Code: wire.CodeDenied,
			Message: fmt.Sprintf("engine option %s: only %s may use it", name, o.Owner),
			Hint: fmt.Sprintf("leave it out, or ask %s to list %s under the configuration key "+
				"docker_options", o.Owner, name)}
	}
	return nil
}
