// Package kernels holds the Python of sandboxes open for what answers over HTTP: one interpreter for each sandbox and principal, as long as
// somebody uses it and a while after. It knows no route.
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
	idle  = time.Minute     // how long an interpreter is kept that nobody uses
	every = 5 * time.Second // how often that is looked at
)

// Pool has the interpreters. Make one with New, and let Run run while it is used. Its methods may be called at once.
type Pool struct {
	hub     *gateway.Hub
	options python.Options

	mu     sync.Mutex
	all    map[key]*entry // guarded by mu
	closed bool           // guarded by mu
}

// key is whose interpreter of which sandbox: what one principal may do is nothing that another one may.
type key struct{ sandbox, principal string }

// entry is one interpreter, or the place of one that is being opened.
type entry struct {
	opening chan struct{}       // semaphore of who opens it
	client  *agent.Client       // guarded by Pool.mu
	in      *python.Interpreter // guarded by Pool.mu; nil before it is open. Set once, by the holder of opening
	users   int                 // guarded by Pool.mu
	left    time.Time           // guarded by Pool.mu; when the last one did
	broken  bool                // guarded by Pool.mu; nobody is to use it any more
}

// New makes a Pool whose interpreters are opened with o.
func New(hub *gateway.Hub, o python.Options) *Pool {
	o.Limits.Images = -1 // nobody asks for them over HTTP
	return &Pool{hub: hub, options: o, all: make(map[key]*entry)}
}

// Lease is the use of an interpreter, until Release.
type Lease struct {
	*python.Interpreter
	pool *Pool
	key  key
	e    *entry
}

// Lease returns p's interpreter of a sandbox, opened if it is not: its server is started in the sandbox where none runs, and the sandbox if
// it is stopped. ctx bounds that. The caller releases it. Whether p may have it, the hub decides.
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

var errClosed = &wire.Error{Code: wire.CodeUnavailable, Message: "the daemon is ending"}

// open makes e's interpreter, if it has none.
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
	client := agent.NewClient(name, nil, func(ctx context.Context) (*connect.Conn, error) { return l.hub.Relay.Open(ctx, p, name, nil) })
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

// Release ends the use. It is called once.
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

// Broken has the interpreter used by nobody else: its server is another one now, or none. Who uses it goes on.
func (u *Lease) Broken() {
	u.pool.mu.Lock()
	defer u.pool.mu.Unlock()
	u.e.broken = true
	if u.pool.all[u.key] == u.e {
		delete(u.pool.all, u.key)
	}
}

// close ends what is open. It may be called twice, as at the end of the Pool.
func (e *entry) close() {
	if e.in != nil {
		_ = e.client.Close() // first, so that what reads from it ends
		_ = e.in.Close()
	}
}

// Run closes what nobody uses, and when ctx ends everything.
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

// Reason is what a client is told of err, which Lease or an interpreter returned: what went wrong with its own sandbox is for its owner.
func Reason(hub *gateway.Hub, err error) *wire.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	if e := hub.Public(err); e.Code != wire.CodeInternal {
		return e
	}
	return &wire.Error{Code: wire.CodeUnavailable, Message: "Python of the sandbox does not answer", Hint: "try again; sandboxd describe shows what the sandbox does"}
}
