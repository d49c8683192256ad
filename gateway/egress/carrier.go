package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// Pauses between attempts to provide a network. They double.
const firstPause, lastPause = 100 * time.Millisecond, 10 * time.Second

// maxSettle is more than a stack needs, unless the sandbox prevents it from reading.
const maxSettle = time.Second

// Carrier provides the network of one sandbox, with a stack for its packets or a proxy, while there
// is a connection to it. The zero value provides none. Its methods are safe for concurrent use.
type Carrier struct {
	mu      sync.Mutex // held while options are read
	now     carrying   // nil: no network
	trouble error      // why there is no network; nil if there is no error
}

// carrying is a *Stack or a *Proxy.
type carrying interface {
	SetPolicy(*Policy)
	SetBudget(*Budget)
	Settle(context.Context)
	Close() error
}

// Keep calls carry repeatedly until ctx ends. It calls it again at once if the last call was long,
// otherwise after a pause. carry calls Packets or Proxy.
func (c *Carrier) Keep(ctx context.Context, log *slog.Logger, carry func(context.Context) error) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		began := time.Now()
		err := carry(ctx)
		if ctx.Err() == nil && err != nil {
			log.Warn("sandbox has no network", "err", err)
		}
		c.ended(err)
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// Packets serves the packets of a TUN device, which it closes. It returns nil when hold ends, which
// means that the sandbox has gone, or when ctx ends. It reads options once; policy changes wait
// until then.
func (c *Carrier) Packets(ctx context.Context, device *os.File, hold net.Conn,
	options func() (Options, error)) error {
	defer hold.Close()
	taken := false
	stack, err := begin(c, options, func(o Options) (*Stack, error) {
		taken = true
		return Start(device, o)
	})
	if err != nil {
		if !taken {
			device.Close()
		}
		return err
	}
	gone := make(chan struct{})
	go func() { // ends with hold
		defer close(gone)
		_, _ = io.Copy(io.Discard, hold) // only its end matters
	}()
	select {
	case <-gone:
	case <-stack.Done(): // a new device may follow
	case <-ctx.Done():
	}
	hold.Close()
	<-gone
	c.ended(nil) // before Close: from here, SetPolicy changes nothing
	return stack.Close()
}

// Proxy serves a proxy on l until l is closed. That is not an error.
func (c *Carrier) Proxy(l net.Listener, options func() (Options, error)) error {
	proxy, err := begin(c, options, NewProxy)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil { // the connection below l has ended
			break
		}
		wg.Go(func() { proxy.Serve(conn) })
	}
	c.ended(nil) // before Close, as above
	err = proxy.Close()
	wg.Wait()
	return err
}

// begin starts a stack or proxy with the current policy.
func begin[C carrying](c *Carrier, options func() (Options, error),
	start func(Options) (C, error)) (now C, err error) {
	c.mu.Lock()
	defer c.mu.Unlock() // a policy change meanwhile waits, and then applies to it
	o, err := options()
	if err != nil {
		return now, err
	}
	if now, err = start(o); err != nil {
		return now, err
	}
	c.now, c.trouble = now, nil
	return now, nil
}

// ended records that there is no network, and why.
func (c *Carrier) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.trouble = nil, err
	if errors.Is(err, context.Canceled) {
		c.trouble = nil
	}
}

// Up reports whether the sandbox has a network.
func (c *Carrier) Up() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now != nil
}

// Trouble returns why there is no network, or nil if there is one or none was started.
func (c *Carrier) Trouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

// SetPolicy sets the policy for new and existing connections.
func (c *Carrier) SetPolicy(policy *Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		c.now.SetPolicy(policy)
	}
}

// SetBudget sets the budget for new connections.
func (c *Carrier) SetBudget(budget *Budget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		c.now.SetBudget(budget)
	}
}

// Settle waits until all connections that the sandbox has made so far are allowed or blocked, for
// at most a second.
func (c *Carrier) Settle(ctx context.Context) {
	c.mu.Lock()
	now := c.now
	c.mu.Unlock()
	if now == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxSettle)
	defer cancel()
	now.Settle(ctx)
}
