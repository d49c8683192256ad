package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
)

// whyBound is why a bound name is not reached by UDP. Programs fall back to TCP.
const whyBound = "a secret binds it: only TLS over TCP can be used"

// broker serves a program's connection to a bound name until it ends, and closes it.
func (g *gate) broker(ctx context.Context, f *flow, conn net.Conn) {
	if g.opts.Broker == nil {
		_ = conn.Close()
		return
	}
	g.opts.Broker(ctx, f.name, conn, func(dialling context.Context) (net.Conn, error) {
		return g.dialBound(ctx, dialling, f.name)
	})
}

// dialBound connects the broker to a bound name. The connection is one of the sandbox's, in policy,
// limits and events. It ends with ctx; dialling bounds the dial alone. Errors have no address of
// this machine.
func (g *gate) dialBound(ctx, dialling context.Context, name string) (net.Conn, error) {
	if !g.begin() {
		return nil, errClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	f := &flow{proto: "tcp", name: name, port: boundPort, end: cancel, brokered: true}
	asked := netip.AddrPortFrom(netip.Addr{}, boundPort)
	failed := func(err error) (net.Conn, error) {
		cancel(err)
		g.wg.Done()
		return nil, errors.New(outward(err))
	}
	if why := g.admit(f); why != (refusal{}) {
		g.event(Event{Kind: KindRefused, Proto: f.proto, Host: name, Addr: asked, Why: why.why,
			Limit: why.limit})
		return failed(why)
	}
	stop := onEnd(dialling, func() { cancel(context.Cause(dialling)) })
	conn, err := g.open(ctx, f, asked)
	stop()
	if err != nil {
		g.dismiss(f)
		return failed(err)
	}
	return g.passage(ctx, f, conn, func() { g.ended(ctx, f, asked) }), nil
}

// wholly is a connection that ends in both directions when one does. A pipe has no half-close, and
// a broker whose program sends no more has nothing to answer.
type wholly struct {
	net.Conn
	ended atomic.Bool // by CloseWrite
}

func (c *wholly) CloseWrite() error {
	c.ended.Store(true)
	return c.Close()
}

// Read returns io.EOF after CloseWrite: the program has ended its connection, which is no error.
func (c *wholly) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if errors.Is(err, io.ErrClosedPipe) && c.ended.Load() {
		err = io.EOF
	}
	return n, err
}
