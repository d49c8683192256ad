package main

import (
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
)

// Containers of a daemon whose state directory is gone are found, with the command that removes
// them. Other containers are not.
func TestLeftBehind(t *testing.T) {
	of := func(daemon, state string) container.Summary {
		return container.Summary{Labels: map[string]string{daemonLabel: daemon},
			Mounts: []container.MountPoint{
				{Source: state + "/instances/x/run"}, {Source: state + "/guest/guest-0123"},
				{Source: "/home/me/guest/guest-book"}}}
	}
	there := func(dir string) bool { return !strings.HasPrefix(dir, "/gone") }
	got := leftBehind([]container.Summary{of("d1", "/gone/a"), of("d2", "/var/lib/b"),
		of("d1", "/gone/a"), of("$(reboot)", "/gone/c"), {}}, there)
	if len(got) != 1 || !got[0].OK || !strings.HasPrefix(got[0].Found, "2 containers ") ||
		!strings.Contains(got[0].Found, "/gone/a") ||
		!strings.HasSuffix(got[0].Fix,
			"docker rm -f $(docker ps -aq --filter label=sandboxd.daemon=d1)") {
		t.Errorf("got %+v", got)
	}
	if got := leftBehind([]container.Summary{of("d2", "/var/lib/b")}, there); len(got) != 0 {
		t.Errorf("with nothing left behind: %+v", got)
	}
}
