package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/stdio"
)

const (
	dialTimeout = 20 * time.Second

	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Second

	// A rejected login or a changed host key does not resolve itself, and retries fill the log of
	// the guest and count against this client. So the pause doubles, up to maxRefusals times.
	refusedPause = 30 * time.Second
	maxRefusals  = 5

	// A connection that ends sooner counts as a failed attempt, so that a guest that closes
	// connections is not redialled in a loop.
	provenAfter = 10 * time.Second
)

// PoolOptions configure a Pool.
type PoolOptions struct {
	// Dial connects to an instance: Dial of its backend. Required.
	Dial func(context.Context, sandbox.Instance) (sandbox.Peer, error)
	// Open opens control connections, with its own timeout. If it is nil or returns nil, the pool
	// logs in to the peer of Dial.
	Open func(context.Context, sandbox.Instance) (*Control, error)
	// Opened is called with each new connection before callers receive it, and has its own timeout.
	// It may be nil.
	Opened func(context.Context, sandbox.Instance, *Control)
	Log    *slog.Logger // nil discards the log
}

// Pool keeps one control connection per instance. Its methods are safe for concurrent use.
//
// After a failed attempt, the next one waits for 100 ms, doubling up to 5 s. After a rejected login
// (ErrLogin, ErrIdentity), there is no attempt for 30 s, doubling up to 16 minutes: callers receive
// the same error immediately. Forget clears both. ErrGone and ErrStopped cause no pause.
type Pool struct {
	dial   func(context.Context, sandbox.Instance) (sandbox.Peer, error)
	open   func(context.Context, sandbox.Instance) (*Control, error)
	opened func(context.Context, sandbox.Instance, *Control)
	log    *slog.Logger
	wg     sync.WaitGroup // running attempts

	firstPause, maxPause, refusedPause, provenAfter time.Duration

	mu      sync.Mutex
	closed  bool              // guarded by mu
	entries map[string]*entry // guarded by mu, with its entries; by Instance.ID
}

type entry struct {
	control  *Control  // may be nil or dead
	since    time.Time // when control was opened
	attempt  *attempt  // running; nil if none
	failures int
	refusals int       // consecutive rejected logins
	next     time.Time // no attempt before
	refused  error     // ErrLogin or ErrIdentity, until next
}

// attempt is one dial, which any number of callers wait for.
type attempt struct {
	waiters int // guarded by Pool.mu
	cancel  context.CancelCauseFunc
	done    chan struct{}
	control *Control // written before done is closed
	err     error    // likewise
}

// NewPool returns an empty pool.
func NewPool(o PoolOptions) *Pool {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Opened == nil {
		o.Opened = func(context.Context, sandbox.Instance, *Control) {}
	}
	return &Pool{
		dial:         o.Dial,
		open:         o.Open,
		opened:       o.Opened,
		log:          o.Log,
		entries:      make(map[string]*entry),
		firstPause:   firstPause,
		maxPause:     maxPause,
		refusedPause: refusedPause,
		provenAfter:  provenAfter,
	}
}

// Control returns the control connection of inst, and opens one if there is none. Concurrent
// callers share one attempt, which is cancelled when the last of them has left. The pool owns the
// connection: callers must not close it.
func (p *Pool) Control(ctx context.Context, inst sandbox.Instance) (*Control, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, fmt.Errorf("connect to %s: %w", label(inst), ErrClosed)
	}
	e := p.entryLocked(inst.ID)
	if e.control != nil {
		if e.control.Err() == nil {
			defer p.mu.Unlock()
			return e.control, nil
		}
		p.buryLocked(inst.ID, e)
	}
	if err := e.refusedLocked(); err != nil {
		p.mu.Unlock()
		return nil, named(inst, err)
	}
	a := e.attempt
	if a == nil {
		a = p.startLocked(ctx, inst, e)
	}
	a.waiters++
	p.mu.Unlock()

	select {
	case <-a.done:
		if a.err != nil {
			return nil, named(inst, a.err)
		}
		return a.control, nil
	case <-ctx.Done():
		p.mu.Lock()
		if a.waiters--; a.waiters == 0 {
			a.cancel(context.Cause(ctx))
			if e.attempt == a { // later callers begin a new one
				e.attempt = nil
			}
		}
		p.mu.Unlock()
		return nil, fmt.Errorf("connect to %s: %w", label(inst), context.Cause(ctx))
	}
}

// label returns the name of an instance in errors: the URI of a host, or the ID.
func label(inst sandbox.Instance) string { return cmp.Or(inst.Host.URI, inst.ID) }

// named adds the instance to an error of a dial. Errors of a host already have it.
func named(inst sandbox.Instance, err error) error {
	if inst.Host.URI != "" {
		return err
	}
	return fmt.Errorf("connect to %s: %w", inst.ID, err)
}

// SSH returns a new connection to inst, for a relayed client. The caller closes it.
func (p *Pool) SSH(ctx context.Context, inst sandbox.Instance) (*Conn, error) {
	p.mu.Lock()
	var err error
	if p.closed {
		err = ErrClosed
	} else if e := p.entries[inst.ID]; e != nil {
		err = e.refusedLocked()
	}
	p.mu.Unlock()
	if err != nil {
		return nil, named(inst, err)
	}
	peer, err := p.dial(ctx, inst)
	if err != nil {
		return nil, named(inst, err)
	}
	var socket *stdio.Socket
	if c, ok := peer.Conn.(*net.UnixConn); ok {
		socket = stdio.NewWarySocket(c)
		peer.Conn = socket
	}
	conn, err := SSH(ctx, peer)
	if err != nil {
		if isRefusal(err) {
			p.mu.Lock()
			if !p.closed {
				p.failedLocked(p.entryLocked(inst.ID), err)
			}
			p.mu.Unlock()
		}
		return nil, fmt.Errorf("connect to %s: %w", label(inst), err)
	}
	if socket != nil {
		conn.programs = stdio.NewPrograms(conn.Conn, socket)
		go conn.programs.Run() // ends with the connection
	}
	return conn, nil
}

// Forget closes the control connection of an instance, cancels a running attempt and clears its
// failures. Call it when the instance was stopped, started or destroyed.
func (p *Pool) Forget(id string) {
	p.mu.Lock()
	control := p.dropLocked(id)
	p.mu.Unlock()
	if control != nil {
		control.Close()
	}
}

// Close closes all connections and waits for running attempts.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	var controls []*Control
	for id := range p.entries {
		if control := p.dropLocked(id); control != nil {
			controls = append(controls, control)
		}
	}
	p.mu.Unlock()
	for _, control := range controls {
		control.Close()
	}
	p.wg.Wait()
	return nil
}

// dropLocked removes an entry, cancels its attempt and returns its connection, which the caller
// closes.
func (p *Pool) dropLocked(id string) *Control {
	e := p.entries[id]
	if e == nil {
		return nil
	}
	delete(p.entries, id)
	if e.attempt != nil {
		e.attempt.cancel(ErrClosed)
	}
	return e.control
}

func (p *Pool) entryLocked(id string) *entry {
	e := p.entries[id]
	if e == nil {
		e = new(entry)
		p.entries[id] = e
	}
	return e
}

// buryLocked removes the dead connection of e.
func (p *Pool) buryLocked(id string, e *entry) {
	p.log.Info("control connection ended", "sandbox", id, "err", e.control.Err())
	dead := e.control
	p.wg.Go(func() { dead.Close() }) // waits for its streams
	e.control = nil
	if time.Since(e.since) < p.provenAfter {
		p.failedLocked(e, dead.Err())
		return
	}
	e.failures, e.next = 0, time.Time{}
}

func (e *entry) refusedLocked() error {
	if e.refused == nil || !time.Now().Before(e.next) {
		return nil
	}
	return e.refused
}

func isRefusal(err error) bool { return errors.Is(err, ErrLogin) || errors.Is(err, ErrIdentity) }

func (p *Pool) failedLocked(e *entry, err error) {
	e.refused = nil
	switch {
	case errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrStopped):
		e.failures, e.next = 0, time.Time{}
	case isRefusal(err):
		e.refused, e.next = err, time.Now().Add(p.refusedPause<<min(e.refusals, maxRefusals))
		e.refusals++
	default:
		e.next = time.Now().Add(min(p.firstPause<<min(e.failures, 10), p.maxPause))
		e.failures++
	}
}

// startLocked begins an attempt for e. It does not end with the first caller's ctx.
func (p *Pool) startLocked(caller context.Context, inst sandbox.Instance, e *entry) *attempt {
	// Other callers wait for it, too. The values of caller say which person may be asked.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	a := &attempt{cancel: cancel, done: make(chan struct{})}
	e.attempt = a
	pause := time.Until(e.next)
	p.wg.Go(func() {
		defer cancel(nil)
		if a.control, a.err = p.reach(ctx, inst, pause); a.err == nil {
			p.opened(ctx, inst, a.control)
		}
		p.mu.Lock()
		wanted := e.attempt == a && p.entries[inst.ID] == e
		if e.attempt == a {
			e.attempt = nil
		}
		switch {
		case a.err != nil && wanted:
			p.failedLocked(e, a.err)
		case a.err == nil && wanted:
			e.control, e.since, e.refused, e.refusals = a.control, time.Now(), nil, 0
		}
		p.mu.Unlock()
		if a.err == nil && !wanted {
			a.control.Close()
			a.control, a.err = nil, ErrClosed
		}
		close(a.done)
	})
	return a
}

func (p *Pool) reach(
	ctx context.Context,
	inst sandbox.Instance,
	pause time.Duration,
) (*Control, error) {
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if p.open != nil {
		if c, err := p.open(ctx, inst); c != nil || err != nil {
			return c, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		dialTimeout,
		fmt.Errorf("no answer within %v", dialTimeout),
	)
	defer cancel()
	peer, err := p.dial(ctx, inst)
	if err != nil {
		return nil, err
	}
	return OpenControl(ctx, peer)
}
