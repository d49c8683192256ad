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

// A way that cannot be had is tried again after a pause that doubles.
const firstPause, lastPause = 100 * time.Millisecond, 10 * time.Second

// maxSettle is longer than a stack needs unless the sandbox keeps it from reading.
const maxSettle = time.Second

// Carrier carries the connections of one sandbox, by a stack for its packets or by a proxy, as long
// as there is a way to it. The zero value carries nothing. Its methods may be called at once.
type Carrier struct {
	mu      sync.Mutex // held while Options are asked for
	now     carrying   // nil while nothing is carried
	trouble error      // why nothing is carried; nil if there is no trouble
}

// carrying is a *Stack or a *Proxy.
type carrying interface {
	SetPolicy(*Policy)
	SetBudget(*Budget)
	Settle(context.Context)
	Close() error
}

// Keep calls carry again and again until ctx ends, at once when the last call lasted and else after
// a pause. carry is what calls Packets or Proxy.
func (c *Carrier) Keep(ctx context.Context, log *slog.Logger, carry func(context.Context) error) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		began := time.Now()
		err := carry(ctx)
		if ctx.Err() == nil && err != nil {
			log.Warn("connections are not carried", "err", err)
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

// Packets carries the packets of a TUN device, which it closes, until hold ends, which says that
// the sandbox has gone, or ctx does: neither is an error. options is asked once, and while it is
// nobody changes the policy.
func (c *Carrier) Packets(ctx context.Context, device *os.File, hold net.Conn, options func() (Options, error)) error {
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
		_, _ = io.Copy(io.Discard, hold) // it says nothing: its end does
	}()
	select {
	case <-gone:
	case <-stack.Done(): // there may be another one
	case <-ctx.Done():
	}
	hold.Close()
	<-gone
	c.ended(nil) // before it is closed: nobody changes its policy any more
	return stack.Close()
}

// Proxy serves a proxy on l until that is closed, which is no error.
func (c *Carrier) Proxy(l net.Listener, options func() (Options, error)) error {
	proxy, err := begin(c, options, NewProxy)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for {
		conn, err := l.Accept()
		if err != nil { // the connection that it stands on has ended
			break
		}
		wg.Go(func() { proxy.Serve(conn) })
	}
	c.ended(nil) // before it is closed, likewise
	err = proxy.Close()
	wg.Wait()
	return err
}

// begin starts what carries, with the policy as it is now.
func begin[C carrying](c *Carrier, options func() (Options, error), start func(Options) (C, error)) (now C, err error) {
	c.mu.Lock()
	defer c.mu.Unlock() // who changes the policy meanwhile waits, and then finds it
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

// ended notes that nothing is carried, and why.
func (c *Carrier) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.trouble = nil, err
	if errors.Is(err, context.Canceled) {
		c.trouble = nil
	}
}

// Up reports whether connections are carried now.
func (c *Carrier) Up() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now != nil
}

// Trouble returns why connections are not carried; nil if they are, or were not tried yet.
func (c *Carrier) Trouble() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

// SetPolicy makes policy the one that holds, now and for connections that exist.
func (c *Carrier) SetPolicy(policy *Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		c.now.SetPolicy(policy)
	}
}

// SetBudget makes budget what new connections are taken from.
func (c *Carrier) SetBudget(budget *Budget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		c.now.SetBudget(budget)
	}
}

// Settle waits until every connection that the sandbox has made so far was judged, for at most a
// second.
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
