package mcp

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxUnanswered limits the calls of a client without a reply. At the limit, the client's messages
// are not read.
const maxUnanswered = 256

// paced is a transport that reads no faster than the client receives replies. It reports the end of
// the client's messages only after all calls have a reply, so that `printf … | sandboxd mcp` prints
// replies.
type paced struct{ sdk.Transport }

func (t *paced) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &pacedConn{
		Connection: c,
		asked:      make(map[any]bool),
		changed:    make(chan struct{}),
		closed:     make(chan struct{}),
	}, nil
}

type pacedConn struct {
	sdk.Connection
	once   sync.Once
	closed chan struct{}

	mu sync.Mutex
	// guarded by mu; calls without a reply, by ID; false for those that last until the client
	// disconnects
	asked   map[any]bool
	changed chan struct{} // guarded by mu; closed and replaced on every reply
}

func (c *pacedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	c.await(ctx, func() bool { return len(c.asked) < maxUnanswered })
	m, err := c.Connection.Read(ctx)
	if errors.Is(err, io.EOF) {
		c.await(
			ctx,
			func() bool { return !slices.Contains(slices.Collect(maps.Values(c.asked)), true) },
		)
	}
	if r, ok := m.(*jsonrpc.Request); ok && err == nil && r.ID.IsValid() {
		c.mu.Lock()
		// which lasts until the client disconnects
		c.asked[r.ID.Raw()] = r.Method != "subscriptions/listen"
		c.mu.Unlock()
	}
	return m, err
}

// await waits until do returns true, or until no replies can be sent. It calls do with mu held.
func (c *pacedConn) await(ctx context.Context, do func() bool) {
	for {
		c.mu.Lock()
		enough, changed := do(), c.changed
		c.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-changed:
		case <-c.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (c *pacedConn) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if r, ok := m.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.asked, r.ID.Raw())
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
	if err != nil && ctx.Err() == nil { // a failed write means that the client has disconnected
		c.once.Do(func() { close(c.closed) })
	}
	return err
}

func (c *pacedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Connection.Close()
}
