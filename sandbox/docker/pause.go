package docker

import (
	"context"
	"fmt"
	"strings"

	"github.com/moby/moby/client"

	"github.com/sandboxd/sandboxd/sandbox"
)

// freezeTries bounds how often a container is frozen anew: on a busy machine runc gives up when its processes, which start others
// meanwhile, are not all frozen after a thousand looks (cgroups 1).
const freezeTries = 5

// Pause freezes the container, its guest with it. See sandbox.Pauser.
func (b *Backend) Pause(ctx context.Context, inst sandbox.Instance) error {
	return b.change(ctx, "pause", inst, func(ref string, running, paused bool) error {
		switch {
		case paused:
			return nil
		case !running:
			return sandbox.ErrStopped
		}
		err := b.call(ctx, b.limits.start, "pause container", func(ctx context.Context) error {
			for tries := 1; ; tries++ {
				_, err := b.api.ContainerPause(ctx, ref, client.ContainerPauseOptions{})
				err = b.unlessSo(ctx, ref, true, err)
				if err == nil || tries == freezeTries || !strings.Contains(err.Error(), "unable to freeze") {
					return err
				}
			}
		})
		if err != nil && ctx.Err() == nil { // the engine may still have been at it for who gave up
			if c, again := b.container(ctx, ref); again == nil && c.State.Paused {
				return nil
			}
		}
		return err
	})
}

// Resume lets it go on. See sandbox.Pauser.
func (b *Backend) Resume(ctx context.Context, inst sandbox.Instance) error {
	return b.change(ctx, "resume", inst, func(ref string, _, paused bool) error {
		if !paused {
			return nil
		}
		return b.unpause(ctx, ref)
	})
}

func (b *Backend) unpause(ctx context.Context, ref string) error {
	return b.call(ctx, b.limits.start, "unpause container", func(ctx context.Context) error {
		_, err := b.api.ContainerUnpause(ctx, ref, client.ContainerUnpauseOptions{})
		return b.unlessSo(ctx, ref, false, err)
	})
}

// change does something to the container of inst, knowing how it is, while nobody else does.
func (b *Backend) change(ctx context.Context, what string, inst sandbox.Instance, do func(ref string, running, paused bool) error) error {
	unlock, err := b.lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, inst.ID, err)
	}
	defer unlock()
	c, err := b.container(ctx, refOf(inst))
	if err == nil {
		err = do(c.ID, c.State.Running, c.State.Paused)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, inst.ID, err)
	}
	return nil
}

// unlessSo is err of a call that was to pause or to resume a container, or nil where it is so already: a call that was given up, or whose
// answer was lost, goes on in the engine, and comes between our look and the call that asks for the same again.
func (b *Backend) unlessSo(ctx context.Context, ref string, paused bool, err error) error {
	if err == nil {
		return nil
	}
	r, inspectErr := b.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	if inspectErr == nil && r.Container.State != nil && r.Container.State.Running && r.Container.State.Paused == paused {
		return nil
	}
	return err
}
