package docker

import (
	"context"
	"errors"
	"fmt"
	"os"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// exitNoLine is the exit code of a guest that got no keys (EX_CONFIG of sysexits.h).
const exitNoLine = 78

// run attaches to the container, sends the keys, starts it and waits for its guest to call, or to
// answer if d is nil. It returns the container's first process, 0 if unknown.
func (s *booting) run(ctx context.Context, id, runtime string, k guestconfig.Keys,
	d *guestsock.Server) (int, error) {
	if err := s.Enter(ctx, sandbox.StageAttach); err != nil {
		return 0, err
	}
	line, err := k.Line()
	if err != nil {
		return 0, err
	}
	a, err := s.b.engine.attach(ctx, s.ref)
	if err != nil {
		return 0, err
	}
	defer func() { _ = a.close() }() // the guest has read its input by then, or never will
	// Only the runtimes whose processes are visible here can be checked before they get the keys.
	checked := len(k.Guest.Mounts) > 0 && passesDescriptors(runtime)
	if !checked {
		a.send(line)
	}

	if err := s.Enter(ctx, sandbox.StageStart); err != nil {
		return 0, err
	}
	if len(k.Guest.Mounts) > 0 {
		if err := s.b.engine.checkMounts(ctx, s.ref, k.Guest.Mounts); err != nil {
			return 0, err
		}
	}
	s.b.engine.silence.forget(s.ref)
	if err := s.b.engine.start(ctx, s.ref); err != nil {
		return 0, err
	}

	if err := s.Enter(ctx, sandbox.StageGuest); err != nil {
		return 0, err
	}
	c, err := s.b.engine.container(ctx, s.ref)
	if err != nil {
		return 0, err
	}
	if c.State.Running {
		if err := s.b.engine.enforces(ctx, c); err != nil {
			return 0, err
		}
		if checked {
			if err := machine.CheckProgram(c.State.Pid, c.Path); err != nil {
				return 0, err
			}
			a.send(line)
		}
		pid := 0
		if d != nil {
			pid = visiblePid(runtime, c.State)
		}
		if err := s.await(ctx, id, k, d, pid); !errors.Is(err, guestsock.ErrGuestEnded) {
			return pid, err
		}
	}
	return 0, s.ended(ctx)
}

// await waits until the guest calls from its process pid, or answers if d is nil. It returns
// guestsock.ErrGuestEnded if the container has ended.
func (s *booting) await(ctx context.Context, id string, k guestconfig.Keys, d *guestsock.Server,
	pid int) error {
	if d == nil {
		return s.awaitAnswer(ctx, id, k)
	}
	d.Admit(pid)
	err := d.WaitGuest(ctx, func(ctx context.Context) error {
		return s.b.engine.waitEnded(ctx, s.ref, 2*guestsock.GuestTimeout)
	})
	if err != nil || pid == 0 {
		return err
	}
	if err := machine.CapTerminals(pid); err != nil { // the guest has just called from it
		s.b.log(id).Debug("no limit of terminals for a sandbox", "err", err)
	}
	return nil
}

// ended is the error of a container that has ended, with the last it printed.
func (s *booting) ended(ctx context.Context) error {
	c, err := s.b.engine.container(ctx, s.ref)
	if err != nil {
		return err
	}
	s.exit = c.State.ExitCode
	return fmt.Errorf("guest ended with exit code %d%s", s.exit, s.b.engine.lastWords(ctx, s.ref))
}

// visiblePid returns the container's first process if the caller of its socket can be compared with
// it. A runtime with its own kernel calls from another process; there only the pinned host key
// identifies the guest.
func visiblePid(runtime string, state *container.State) int {
	if passesDescriptors(runtime) {
		return state.Pid
	}
	return 0
}

// passesDescriptors reports whether a runtime's processes run on this machine's kernel: they can
// pass descriptors, and the daemon can see which process calls.
func passesDescriptors(runtime string) bool {
	switch runtime {
	case "runc", "crun", "io.containerd.runc.v2":
		return true
	}
	return false
}

// checkMounts checks the files of a container that does not run, as machine.CheckMounts does: links
// that root in the sandbox left there may lead its mounts to another place.
func (e *engine) checkMounts(ctx context.Context, ref string, mounts []wire.GuestMount) error {
	all := make([]sandbox.Mount, 0, len(mounts))
	for _, m := range mounts {
		all = append(all, sandbox.Mount{Path: m.Path})
	}
	return machine.CheckMounts(all, func(path string) (string, error) {
		var got client.ContainerStatPathResult
		err := e.call(ctx, e.limits.quick, "look at "+path, func(ctx context.Context) (err error) {
			got, err = e.api.ContainerStatPath(ctx, ref,
				client.ContainerStatPathOptions{Path: path})
			return err
		})
		if cerrdefs.IsNotFound(err) {
			return "", nil // the engine makes it
		}
		if err != nil || got.Stat.Mode&os.ModeSymlink == 0 {
			return "", err
		}
		return got.Stat.LinkTarget, nil
	})
}
