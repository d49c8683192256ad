package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
	"github.com/sandboxd/sandboxd/sandbox/guestsock"
	"github.com/sandboxd/sandboxd/sandbox/machine"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// guestTimeout bounds the wait for a guest's first call, which comes within milliseconds. It exits
// when it has no keys after 10 s.
const guestTimeout = 15 * time.Second

var errGuestEnded = errors.New("guest ended")

// exitNoLine is the exit code of a guest that got no keys (EX_CONFIG of sysexits.h).
const exitNoLine = 78

// run attaches to the container, sends the keys, starts it and waits for its guest to call, or to
// answer if d is nil. It returns the container's first process, 0 if unknown.
func (s *booting) run(ctx context.Context, id, runtime string, k guestconfig.Keys,
	d *guestsock.Server) (int, error) {
	if err := s.enter(ctx, stageAttach); err != nil {
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

	if err := s.enter(ctx, stageStart); err != nil {
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

	if err := s.enter(ctx, stageGuest); err != nil {
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
		pid := visiblePid(runtime, c.State)
		if checked {
			if err := machine.CheckProgram(c.State.Pid, c.Path); err != nil {
				return 0, err
			}
			a.send(line)
		}
		if d == nil {
			pid, err = 0, s.awaitAnswer(ctx, id, k)
		} else {
			d.Admit(pid)
			err = s.await(ctx, d)
		}
		if err == nil {
			if pid != 0 { // the process that the guest has just called from
				if err := machine.CapTerminals(pid); err != nil {
					s.b.opts.Log.Debug("no limit of terminals for a sandbox", "container", s.ref,
						"err", err)
				}
			}
			return pid, nil
		}
		if !errors.Is(err, errGuestEnded) {
			return 0, err
		}
		if c, err = s.b.engine.container(ctx, s.ref); err != nil {
			return 0, err
		}
	}
	s.exit = c.State.ExitCode
	return 0, fmt.Errorf("guest ended with exit code %d%s", s.exit,
		s.b.engine.lastWords(ctx, s.ref))
}

// await waits until the guest has called. It returns errGuestEnded if the container has ended.
func (s *booting) await(ctx context.Context, d *guestsock.Server) error {
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout,
		fmt.Errorf("guest did not call in within %v", guestTimeout))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	wg.Go(func() {
		if s.b.engine.waitEnded(ctx, s.ref, 2*guestTimeout) == nil {
			end(errGuestEnded)
		}
	})
	return d.Wait(ctx)
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
