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

// maxUnanswered is how many calls a client may be owed an answer of. One that asks for more and reads none is not read any further.
const maxUnanswered = 256

// paced is a transport that reads no faster than the client takes answers, and tells of the end of what the client sends only when its
// calls are answered: `printf … | sandboxd mcp` has its answers.
type paced struct{ sdk.Transport }

func (t *paced) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &pacedConn{Connection: c, asked: make(map[any]bool), changed: make(chan struct{}), closed: make(chan struct{})}, nil
}

type pacedConn struct {
	sdk.Connection
	once   sync.Once
	closed chan struct{}

	mu      sync.Mutex
	asked   map[any]bool  // guarded by mu; calls that have no answer, by ID; true for those that will have one by themselves
	changed chan struct{} // guarded by mu; closed and replaced when one gets it
}

func (c *pacedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	c.await(ctx, func() bool { return len(c.asked) < maxUnanswered })
	m, err := c.Connection.Read(ctx)
	if errors.Is(err, io.EOF) {
		c.await(ctx, func() bool { return !slices.Contains(slices.Collect(maps.Values(c.asked)), true) })
	}
	if r, ok := m.(*jsonrpc.Request); ok && err == nil && r.ID.IsValid() {
		c.mu.Lock()
		c.asked[r.ID.Raw()] = r.Method != "subscriptions/listen" // which goes on until the client leaves
		c.mu.Unlock()
	}
	return m, err
}

// await returns when so few calls are unanswered that it will do, or nobody will answer them. do is called with mu held.
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
	if err != nil && ctx.Err() == nil { // who cannot be written to is gone
		c.once.Do(func() { close(c.closed) })
	}
	return err
}

func (c *pacedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Connection.Close()
}
