package gateway

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

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
func (b *box) claim(ctx context.Context) error {
	defer b.unlock()
	h := b.hub
	f := b.get()
	h.at("reserved")
	err := context.Cause(ctx)
	if err == nil {
		err = stored(h.note(b.id, f)) // before the row: without the store it is whose it may be, and not removed as nobody's
	}
	h.at("noted")
	if err == nil {
		err = b.become(ctx, func(f *facts) { f.state = Running })
	}
	if err != nil {
		b.disown(ctx, err)
		return nameTaken(f, err)
	}
	h.at("stored")
	b.network.pays(h.connectionsOf(f.owner))
	b.Touch()
	h.board.Reshare()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), nameWithin)
	defer cancel()
	c, err := h.pool.Control(within, f.inst)
	if err == nil {
		err = f.introduce(within, c)
	}
	h.at("named")
	if err == nil {
		h.counts.claims.Add(1)
		return nil
	}
	b.disown(ctx, err)
	return errNotReady
}

// disown removes a sandbox whose claim failed. It does not go back into the pool: whoever has found
// it by its name already, and waits, must not come into somebody else's.
func (b *box) disown(ctx context.Context, why error) {
	b.hub.counts.claimsFailed.Add(1)
	b.hub.log.Warn("a pooled sandbox is removed: it was not claimed", "id", b.id, "err", why)
	b.note(ctx, Deleting, "its claim failed")
	b.hub.unname(b)
	b.hub.laterNow(b)
}

// introduce tells a guest that was booted without a name what it is called: it takes one, once.
func (f facts) introduce(ctx context.Context, c *connect.Control) error {
	if f.spec.Name != "" || f.isPooled() || f.inst.Host.URI != "" {
		return nil
	}
	_, err := c.Do(ctx, wire.Control{Do: "name", Name: f.name})
	return err
}

// opened is called with each new control connection.
func (h *Hub) opened(ctx context.Context, inst sandbox.Instance, c *connect.Control) {
	h.mu.Lock()
	b := h.boxes[inst.ID]
	h.mu.Unlock()
	if b == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, nameWithin)
	defer cancel()
	if err := b.get().introduce(within, c); err != nil {
		h.log.Debug("a guest does not take its name", "id", b.id, "err", err)
	}
}

// unnote removes what note wrote.
func (h *Hub) unnote(id string) {
	if err := os.Remove(filepath.Join(h.records(id), labelFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log.Warn("note not removed", "id", id, "err", err)
	}
}
