package docker

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
)

// SetHostname sets the host name of a running instance. The engine can set it only when it makes a
// container, and no process in one may change it; see sandbox.Namer. It asks no engine. It returns
// ErrUnsupported if the guest's process is not known, as for a runtime with its own kernel, or if
// the daemon lacks CAP_SYS_ADMIN.
func (b *Backend) SetHostname(_ context.Context, inst sandbox.Instance, name string) error {
	if b.state.listens(inst.ID) {
		return fmt.Errorf("host name of %s: %w: the engine is remote", inst.ID,
			sandbox.ErrUnsupported)
	}
	d, err := b.sockets.Open(inst.ID, guestsock.SSH)
	if err == nil {
		err = machine.SetHostname(d.PID(), inst.Ref, name)
	}
	if err != nil {
		return fmt.Errorf("host name of %s: %w", inst.ID, err)
	}
	return nil
}
