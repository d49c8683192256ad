package gateway

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/connect"
)

// spareKept is how long the spare connection of a sandbox that was claimed waits for its first client.
const spareKept = 10 * time.Second

// prepare logs in to a member of the pool, and keeps that connection for the first client of who claims it: a login takes about as
// long as a short command. It returns when somebody has taken the connection, or when that or ctx has ended.
func (b *box) prepare(ctx context.Context) {
	f := b.get()
	if f.state != Warm {
		return
	}
	c, err := b.hub.pool.SSH(ctx, f.inst)
	if err != nil {
		return // the first client logs in itself
	}
	ended := make(chan struct{})
	go func() { // ends with the connection, which whoever has it closes
		_ = c.Wait()
		close(ended)
	}()
	taken := make(chan struct{})
	b.mu.Lock()
	b.spare, b.spareTaken = c, taken
	b.mu.Unlock()
	select {
	case <-taken:
		return
	case <-ended:
	case <-ctx.Done():
	}
	if b.takeSpare() == c {
		c.Close()
	}
	select { // whoever was quicker has it
	case <-ended:
	case <-taken:
	}
}

// takeSpare returns the spare connection, if there is one, which the caller then closes.
func (b *box) takeSpare() *connect.Conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.spare
	if c != nil {
		close(b.spareTaken)
	}
	b.spare, b.spareTaken = nil, nil
	return c
}

// outlast gives up the spare connection of a sandbox that was claimed, if nobody wants it.
func (b *box) outlast(ctx context.Context) {
	sleep(ctx, spareKept)
	if c := b.takeSpare(); c != nil {
		c.Close()
	}
}
