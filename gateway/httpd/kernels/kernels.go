// Package kernels keeps Python kernels in sandboxes open for HTTP clients. Each sandbox and
// principal has one interpreter. It stays open while it is used, and for a while after. The package
// knows no routes.
package kernels

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	idle  = time.Minute     // time after which an unused interpreter is closed
	every = 5 * time.Second // interval between checks for unused interpreters
)

// Pool holds the interpreters. Create one with New, and run Run while it is used. Its methods are
// safe for concurrent use.
type Pool struct {
	hub     *gateway.Hub
	options python.Options

	mu     sync.Mutex
	all    map[key]*entry // guarded by mu
	closed bool           // guarded by mu
}

// key identifies an interpreter. Principals share none, because their rights differ.
type key struct{ sandbox, principal string }

// entry is an interpreter, or the place of one that is being opened.
type entry struct {
	opening chan struct{} // semaphore; its holder opens the interpreter
	client  *agent.Client // guarded by Pool.mu
	// Guarded by Pool.mu; nil until open. Set once, by the holder of opening.
	in     *python.Interpreter
	users  int       // guarded by Pool.mu
	left   time.Time // guarded by Pool.mu; when the last user released it
	broken bool      // guarded by Pool.mu; closed to new users
}

// New returns a Pool that opens interpreters with o.
func New(hub *gateway.Hub, o python.Options) *Pool {
	o.Limits.Images = -1 // HTTP clients have no use for images
	return &Pool{hub: hub, options: o, all: make(map[key]*entry)}
}

// Lease is the right to use an interpreter, until Release.
type Lease struct {
	*python.Interpreter
	pool *Pool
	key  key
	e    *entry
}

// Lease returns p's interpreter of a sandbox, and opens it if necessary. It starts the sandbox and
// its Jupyter server if they do not run. ctx bounds that. The caller must release the lease. The
// hub decides whether p may have it.
func (l *Pool) Lease(ctx context.Context, p gateway.Principal, i lifecycle.Info) (*Lease, error) {
	k := key{i.ID, p.Name + "\x00" + string(p.Rights)}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, errClosed
	}
	e := l.all[k]
	if e == nil {
		e = &entry{opening: make(chan struct{}, 1)}
		l.all[k] = e
	}
	e.users++
	l.mu.Unlock()
	lease := &Lease{pool: l, key: k, e: e}
	if err := l.open(ctx, e, p, i.Name); err != nil {
		lease.Release()
		return nil, err
	}
	lease.Interpreter = e.in
	return lease, nil
}

var errClosed = &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon is stopping"}

// open opens e's interpreter if it is not open.
func (l *Pool) open(ctx context.Context, e *entry, p gateway.Principal, name string) error {
	select {
	case e.opening <- struct{}{}:
		defer func() { <-e.opening }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if e.in != nil {
		return nil
	}
	client := agent.NewClient(name, nil, func(ctx context.Context) (*connect.Conn, error) {
		return l.hub.Relay.Open(ctx, p, name, nil)
	})
	in, err := python.Open(ctx, client, l.options)
	if err != nil {
		client.Close()
		return err
	}
	l.mu.Lock()
	e.client, e.in = client, in
	l.mu.Unlock()
	return nil
}

// Release ends the lease. Call it once.
func (u *Lease) Release() {
	l, e := u.pool, u.e
	l.mu.Lock()
	e.users--
	e.left = time.Now()
	over := e.users == 0 && (l.closed || e.broken || e.in == nil)
	if over && l.all[u.key] == e {
		delete(l.all, u.key)
	}
	l.mu.Unlock()
	if over {
		e.close()
	}
}

// Broken gives the interpreter to no new users, because its server ended or was replaced. Current
// users keep it.
func (u *Lease) Broken() {
	u.pool.mu.Lock()
	defer u.pool.mu.Unlock()
	u.e.broken = true
	if u.pool.all[u.key] == u.e {
		delete(u.pool.all, u.key)
	}
}

// close closes the interpreter. A second call does nothing.
func (e *entry) close() {
	if e.in != nil {
		_ = e.client.Close() // first, so that its readers return
		_ = e.in.Close()
	}
}

// Run closes unused interpreters, and all of them when ctx ends.
func (l *Pool) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		l.mu.Lock()
		l.closed = ctx.Err() != nil
		var over []*entry
		for k, e := range maps.Clone(l.all) {
			if l.closed && e.in != nil || e.users == 0 && time.Since(e.left) > idle {
				delete(l.all, k)
				over = append(over, e)
			}
		}
		l.mu.Unlock()
		for _, e := range over {
			e.close()
		}
	}
}

// Reason returns the error that a client sees for err, which comes from Lease or an interpreter.
// The owner of a sandbox may see why it failed.
func Reason(hub *gateway.Hub, err error) *wire.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	if e := hub.Public(err); e.Code != wire.CodeInternal {
		return e
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: "Python in the sandbox does not answer",
		Hint: "try again, or check the sandbox with sandboxd describe"}
}
