package main

import (
	"fmt"
	"os"

	"github.com/sandboxd/sandboxd/sandbox/host"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// findGuests returns the guest binaries: those in the configured directory, or those beside an
// installed or built sandboxd. If there are none, this program is the guest, if it is static: it
// must run in images without a C library.
func findGuests(configured string) (host.Guests, error) {
	if configured != "" {
		return host.GuestsIn(configured), nil
	}
	self, err := os.Executable()
	if err != nil {
		return host.Guests{}, fmt.Errorf("guest binaries: %w", err)
	}
	if g, ok := host.GuestsBeside(self); ok {
		return g, nil
	}
	g, err := host.GuestItself(self)
	if err != nil {
		return host.Guests{}, &wire.Error{
			Code: wire.CodeUnavailable,
			Message: fmt.Sprintf(
				"guest binaries: none beside %s, and this program cannot be the guest: %v",
				self, err),
			Hint: "build a static one: CGO_ENABLED=0 go install " +
				"github.com/sandboxd/sandboxd/cmd/sandboxd@latest; " +
				"or build guests with make build, and set the key guest_dir to their directory",
		}
	}
	return g, nil
}
