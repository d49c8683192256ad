package lifecycle

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// errNotReady says that a pooled sandbox was not what it seemed: it is removed, and another may be
// had.
var errNotReady = errors.New("the pooled sandbox does not answer")

// claim carries out what reserve began with a pooled sandbox, and ends the act. It asks no engine.
// Whatever it ends with, kill -9 of the daemon included, the sandbox is the pool's until its row is
// put, and whose the row says from then on: what its guest is called it is told again on each new
// connection.
func (c *creation) claim(ctx context.Context) error {
	defer c.unlock()
	reg := c.reg
	f := c.get()
	reg.at("reserved")
	err := context.Cause(ctx)
	if err == nil {
		err = stored(reg.notes.write(c.id, f)) // before the row: without the store it is whose it may be, and not removed as nobody's
	}
	reg.at("noted")
	if err == nil {
		err = c.become(ctx, func(f *Record) { f.State = Running })
	}
	if err != nil {
		c.disown(ctx, err)
		return nameTaken(f, err)
	}
	reg.at("stored")
	c.network.SetBudget(reg.accounts.connectionsOf(f.Owner))
	c.expiry.touch()
	reg.board.Reshare()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), nameWithin)
	defer cancel()
	control, err := reg.pool.Control(within, f.Instance)
	if err == nil {
		err = f.introduce(within, control)
	}
	reg.at("named")
	if err == nil {
		reg.counts.claims.Add(1)
		return nil
	}
	c.disown(ctx, err)
	return errNotReady
}

// disown removes a sandbox whose claim failed. It does not go back into the pool: whoever has found
// it by its name already, and waits, must not come into somebody else's.
func (c *creation) disown(ctx context.Context, why error) {
	c.reg.counts.claimsFailed.Add(1)
	c.reg.log.Warn("a pooled sandbox is removed: it was not claimed", "id", c.id, "err", why)
	c.note(ctx, Deleting, "its claim failed")
	c.reg.unname(c.Sandbox)
	c.reg.removals.laterNow(c.Sandbox)
}

// introduce tells a guest that was booted without a name what it is called: it takes one, once.
func (f Record) introduce(ctx context.Context, c *connect.Control) error {
	if f.Spec.Name != "" || f.isPooled() || f.Instance.Host.URI != "" {
		return nil
	}
	_, err := c.Do(ctx, wire.Control{Do: "name", Name: f.Name})
	return err
}

// opened is called with each new control connection.
func (reg *Registry) opened(ctx context.Context, inst sandbox.Instance, c *connect.Control) {
	sb := reg.byID(inst.ID)
	if sb == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, nameWithin)
	defer cancel()
	if err := sb.get().introduce(within, c); err != nil {
		reg.log.Debug("a guest does not take its name", "id", sb.id, "err", err)
	}
}
