package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/guest"
)

// runAsGuest runs the guest of a sandbox, if this process is one, and does not return then.
func runAsGuest(args []string) {
	if args, ok := runsAsGuest(args); ok {
		os.Exit(guest.Main(args))
	}
}

// runsAsGuest reports whether this process is the guest of a sandbox, and returns its arguments.
// sandboxd is the guest if it was mounted into a container or copied to a host as guest-SUM, as a
// child of such a guest, which is named guest.Name, and as sandboxd guest.
func runsAsGuest(args []string) (guestArgs []string, ok bool) {
	name := filepath.Base(args[0])
	switch {
	case name == guest.Name, strings.HasPrefix(name, "guest-"):
		return args, true
	case len(args) > 1 && args[1] == "guest":
		return slices.Concat([]string{guest.Name}, args[2:]), true
	}
	return nil, false
}
