package lifecycle

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// errNotReady means that the pooled sandbox was unusable and is being removed. The caller tries
// another one.
var errNotReady = errors.New("the pooled sandbox does not answer")

// claim finishes a creation that reserve began with a pooled sandbox, and ends the act. It calls no
// engine. Until the row is written, the sandbox belongs to the pool; from then on to the owner in
// the row. This holds even if the daemon is killed in between. The guest is sent its name again on
// each new connection.
func (c *creation) claim(ctx context.Context) error {
	defer c.unlock()
	reg := c.reg
	f := c.get()
	reg.at("reserved")
	err := context.Cause(ctx)
	if err == nil {
		// Before the row: if the store is lost, the owner keeps the sandbox.
		err = stored(reg.manifests.write(c.id, f))
	}
	reg.at("noted")
	if err == nil {
		err = c.transition(ctx, func(f *Record) { f.State = Running })
	}
	if err != nil {
		c.abandon(ctx, err)
		return nameTaken(f, err)
	}
	reg.at("stored")
	c.network.SetBudget(reg.accounts.connectionsOf(f.Owner))
	if err := c.network.bindSecrets(ctx); err != nil {
		c.abandon(ctx, err)
		return errNotReady
	}
	c.expiry.touch()
	reg.board.Reshare()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), nameWithin)
	defer cancel()
	control, err := reg.pool.Control(within, f.Instance)
	if err == nil {
		err = reg.name(within, f, control)
	}
	reg.at("named")
	if err == nil {
		reg.counts.claims.Add(1)
		return nil
	}
	c.abandon(ctx, err)
	return errNotReady
}

// abandon removes a sandbox whose claim failed. It does not return to the pool: a caller that
// already found it by its name must not reach another owner's sandbox.
func (c *creation) abandon(ctx context.Context, why error) {
	c.reg.counts.claimsFailed.Add(1)
	c.reg.log.Warn("pooled sandbox removed: claim failed", "id", c.id, "err", why)
	c.observed(ctx, Deleting, "its claim failed")
	c.reg.roster.unname(c.Sandbox)
	c.reg.removals.retryNow(c.Sandbox)
}

// name gives a sandbox that was booted without a name the host name of its record, and tells its
// guest, which accepts a name once. The error is the guest's: a sandbox whose host name cannot be
// set keeps its ID.
func (reg *Registry) name(ctx context.Context, f Record, c *connect.Control) error {
	if !f.isNamedLater() {
		return nil
	}
	be, ok := reg.options.Backends[f.Instance.Backend].(sandbox.Namer)
	if label, err := wire.ParseLabel("sandbox name", f.Name); ok && err == nil {
		if err := be.SetHostname(ctx, f.Instance, label); err != nil {
			reg.log.Debug("host name not set", "id", f.Instance.ID, "err", err)
		}
	}
	_, err := c.Do(ctx, wire.Control{Do: "name", Name: f.Name})
	return err
}

// isNamedLater reports whether the instance was made without the name that its sandbox has now, and
// is given it over the control connection.
func (f Record) isNamedLater() bool {
	return f.Spec.Name == "" && !f.isPooled() && f.Instance.Host.URI == ""
}

// nameStarted gives a started instance its name before anyone can log in to it. An instance that
// does not answer keeps its ID as its host name until it does.
func (reg *Registry) nameStarted(ctx context.Context, f Record, inst sandbox.Instance) {
	if !f.isNamedLater() {
		return
	}
	within, cancel := context.WithTimeout(ctx, nameWithin)
	defer cancel()
	if _, err := reg.pool.Control(within, inst); err != nil { // see controlOpened
		reg.log.Debug("started without its name", "id", inst.ID, "err", err)
	}
}

// controlOpened is called with each new control connection.
func (reg *Registry) controlOpened(ctx context.Context, inst sandbox.Instance, c *connect.Control) {
	sb := reg.roster.byID(inst.ID)
	if sb == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, nameWithin)
	defer cancel()
	if err := reg.name(within, sb.get(), c); err != nil {
		reg.log.Debug("guest rejected its name", "id", sb.id, "err", err)
	}
}
