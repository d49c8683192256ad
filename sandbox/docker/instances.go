package docker

import (
	"context"
	"fmt"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/guestconfig"
)

// instances serializes changes of each instance.
type instances struct {
	guestconfig.Locks

	engine *engine
}

// change locks the instance and passes the current state of its container to do.
func (l *instances) change(ctx context.Context, what string, inst sandbox.Instance,
	do func(ref string, running, paused bool) error) error {
	unlock, err := l.Lock(ctx, inst.ID)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, inst.ID, err)
	}
	defer unlock()
	c, err := l.engine.container(ctx, refOf(inst))
	if err == nil {
		err = do(c.ID, c.State.Running, c.State.Paused)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, inst.ID, err)
	}
	return nil
}
