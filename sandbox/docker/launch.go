package docker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox/docker/guestsock"
)

// A guest calls in a few milliseconds after its start. It gives up itself when its keys have not come after 10 s.
const guestTimeout = 15 * time.Second

var errGuestEnded = errors.New("guest ended")

// exitNoLine is the exit code of a guest that was given no keys (EX_CONFIG of sysexits.h).
const exitNoLine = 78

// run attaches to the container, hands over the keys, starts it and waits for its guest to call in. It returns the first
// process of the container, 0 where it cannot be seen.
func (s *booting) run(ctx context.Context, runtime string, k keys, d *guestsock.Server) (int, error) {
	if err := s.enter(ctx, stageAttach); err != nil {
		return 0, err
	}
	line, err := k.line()
	if err != nil {
		return 0, err
	}
	a, err := s.b.engine.attach(ctx, s.ref, line)
	if err != nil {
		return 0, err
	}
	defer func() { _ = a.close() }() // by then the guest has read it, or never will

	if err := s.enter(ctx, stageStart); err != nil {
		return 0, err
	}
	err = s.b.engine.call(ctx, s.b.engine.limits.start, "start container", func(ctx context.Context) error {
		_, err := s.b.engine.api.ContainerStart(ctx, s.ref, client.ContainerStartOptions{})
		return err
	})
	if err != nil {
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
		pid := visiblePid(runtime, c.State)
		d.Admit(pid)
		if err = s.await(ctx, d); err == nil {
			if pid != 0 { // which the guest has just called from
				if err := capTerminals(pid); err != nil {
					s.b.opts.Log.Debug("terminals of a sandbox have no limit of their own", "container", s.ref, "err", err)
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
	return 0, fmt.Errorf("guest ended with exit code %d%s", s.exit, s.b.engine.lastWords(ctx, s.ref))
}

// await returns when the guest has called in, or errGuestEnded when the container has ended.
func (s *booting) await(ctx context.Context, d *guestsock.Server) error {
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout, fmt.Errorf("guest did not call in within %v", guestTimeout))
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

// visiblePid is the container's first process where callers can be compared with it. A runtime with a kernel of its own
// dials from elsewhere; there the pinned host key alone says who calls.
func visiblePid(runtime string, state *container.State) int {
	if passesDescriptors(runtime) {
		return state.Pid
	}
	return 0
}

// passesDescriptors reports whether the processes of a runtime are processes of this kernel: one can pass another a
// descriptor then, and is seen for who it is.
func passesDescriptors(runtime string) bool {
	switch runtime {
	case "runc", "crun", "io.containerd.runc.v2":
		return true
	}
	return false
}
