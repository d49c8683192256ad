// Package sandboxtest tests the contract of a sandbox.Backend ([Run]), and provides one that needs
// no container engine. [Backend] keeps sandboxes in memory, each with a real guest in this process,
// so that code above a backend can be tested with real SSH and real commands. Its sandboxes are not
// isolated: commands run on this machine, as the user of the test, in a home directory of their
// own. The guest needs Linux: elsewhere [New] skips the test.
//
// Only tests import it. The guest starts children of its own kind from the running program: a
// program that imports this package becomes the guest when it is started as guest.Name.
package sandboxtest

import (
	"log/slog"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Name is the name of the in-memory backend in instances.
const Name = "memory"

// NoImage is an image that the in-memory backend does not have; it has all others, with the same
// content.
const NoImage = "no-such-image:latest"

// Options of a Backend. The zero value works.
type Options struct {
	Env []string     // of every sandbox
	Log *slog.Logger // of the guests; nil discards
	// Fail, if set, is called at each stage of Boot and Start, which fails with its error:
	// StageValidate, StageImage, StageKeys, StageCreate and StageGuest.
	Fail func(sandbox.Stage) error
	// Freezes allows Freeze. Then no descriptors are passed to guests.
	Freezes bool
}
