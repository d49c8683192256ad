package docker

import (
	"context"
	"strings"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

// freezeTries bounds retries of a pause. With cgroups 1 on a busy machine runc gives up when, after
// a thousand attempts, some processes that fork are not frozen.
const freezeTries = 5

// Pause freezes the container with its guest. See sandbox.Pauser.
//
// The engine sets its "paused" when a call returns and again when an event of containerd arrives
// (moby, daemon/monitor.go). If it is busy, the event of a pause may arrive after the next resume:
// a Pause or Resume within that tenth of a second goes by the former state, and does nothing.
func (b *Backend) Pause(ctx context.Context, inst sandbox.Instance) error {
	return b.instances.change(ctx, "pause", inst, func(ref string, running, paused bool) error {
		switch {
		case paused:
			return nil
		case !running:
			return sandbox.ErrStopped
		}
		err := b.engine.call(ctx, b.engine.limits.start, "pause container",
			func(ctx context.Context) error {
				for tries := 1; ; tries++ {
					_, err := b.engine.api.ContainerPause(ctx, ref, client.ContainerPauseOptions{})
					err = b.engine.unlessSo(ctx, ref, true, err)
					if err == nil || tries == freezeTries ||
						!strings.Contains(err.Error(), "unable to freeze") {
						return err
					}
				}
			})
		// An earlier, abandoned call may still have been in progress.
		if err != nil && ctx.Err() == nil {
			if c, again := b.engine.container(ctx, ref); again == nil && c.State.Paused {
				return nil
			}
		}
		return err
	})
}

// Resume lets the container continue. See sandbox.Pauser.
func (b *Backend) Resume(ctx context.Context, inst sandbox.Instance) error {
	return b.instances.change(ctx, "resume", inst, func(ref string, _, paused bool) error {
		if !paused {
			return nil
		}
		return b.engine.unpause(ctx, ref)
	})
}
