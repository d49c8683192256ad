package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

const (
	dialTimeout = 15 * time.Second // in total: name and all addresses
	// Head start of an address before the next is also tried (RFC 8305, section 5).
	dialHead = 250 * time.Millisecond
)

// dialAny connects to the first of addrs that answers, and tries them in order. addrs is not empty.
// One attempt is already paid for. Concurrent ones are taken from budget until it returns. Without
// budget they wait for others to fail.
func dialAny(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error),
	budget *Budget, network string, addrs []netip.AddrPort) (net.Conn, netip.AddrPort, error) {
	if len(addrs) == 1 {
		conn, err := dial(ctx, network, addrs[0].String())
		return conn, addrs[0], err
	}
	type result struct {
		conn net.Conn
		addr netip.AddrPort
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result)
	next, pending, paid := 0, 0, 1
	start := func() {
		addr := addrs[next]
		next++
		pending++
		go func() {
			conn, err := dial(ctx, network, addr.String())
			results <- result{conn, addr, err}
		}()
	}
	defer func() { // close the others
		defer func() { budget.give(paid - 1) }()
		cancel()
		for ; pending > 0; pending-- {
			if r := <-results; r.conn != nil {
				_ = r.conn.Close()
			}
		}
	}()
	head := time.NewTimer(dialHead)
	defer head.Stop()
	start()
	var failed []error
	for {
		select {
		case <-head.C:
		case r := <-results:
			pending--
			if r.err == nil {
				return r.conn, r.addr, nil
			}
			failed = append(failed, r.err)
		}
		switch {
		case next < len(addrs):
			if pending == paid {
				if budget.take(1) != (refusal{}) {
					head.Reset(dialHead)
					continue
				}
				paid++
			}
			start()
			head.Reset(dialHead)
		case pending == 0:
			return nil, addrs[0], errors.Join(failed...)
		}
	}
}
