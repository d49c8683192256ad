package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/things-go/go-socks5"
	"github.com/things-go/go-socks5/statute"
)

const (
	// maxProxied limits the concurrent connections of a proxy: each is an SSH channel, which may
	// hold 2 MiB of unread data.
	maxProxied = 128
	maxHead    = 64 << 10  // bytes of a request's header
	maxAnswer  = 256 << 10 // bytes of a response's header
	// Of a connection without a request, or after the last request until a response.
	proxyIdle = 60 * time.Second

	proxyLinger = time.Second // for a program that keeps sending to read why it was blocked
	maxLinger   = 1 << 20     // bytes that it sends meanwhile
)

// Proxy is the network of a sandbox whose packets do not reach the daemon. It is an HTTP proxy,
// with and without CONNECT, and a SOCKS5 proxy (RFC 1928), on connections that are accepted in the
// sandbox. Policy, limits and events are those of a Stack. It does not support datagrams. Its
// methods are safe for concurrent use.
type Proxy struct {
	*gate
	dial  func(host string, port uint16) (*passage, error)
	until func(over func()) (stop func()) // calls over at Close, as onEnd
	slots chan struct{}

	patience time.Duration // proxyIdle; shorter in tests
}

// NewProxy returns a proxy for one sandbox. The caller closes it.
func NewProxy(opts Options) (*Proxy, error) {
	g, ctx, err := newGate(opts)
	if err != nil {
		return nil, err
	}
	p := &Proxy{gate: g, slots: make(chan struct{}, maxProxied), patience: proxyIdle}
	p.dial = func(host string, port uint16) (*passage, error) { return p.dialHost(ctx, host, port) }
	p.until = func(over func()) func() { return onEnd(ctx, over) }
	return p, nil
}

// Settle returns at once: Options.Event is called before a program gets the answer.
func (p *Proxy) Settle(context.Context) {}

// Close ends all connections and waits for all goroutines.
func (p *Proxy) Close() error {
	p.end()
	p.wg.Wait()
	return nil
}

// Serve serves one connection of a program until it ends, and closes it.
func (p *Proxy) Serve(conn net.Conn) {
	defer conn.Close()
	if !p.begin() {
		return
	}
	defer p.wg.Done()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		p.event(Event{Kind: KindRefused, Proto: "tcp", Host: "proxy",
			Why: fmt.Sprintf("%d connections are open, the limit of the proxy", maxProxied)})
		return
	}
	defer p.until(func() { _ = conn.Close() })()
	conn = &inTurn{Conn: conn}
	c := &proxied{Conn: conn, proxy: p}
	// Not a deadline: an SSH channel has none.
	c.idle = time.AfterFunc(p.patience, func() { _ = conn.Close() })
	defer c.idle.Stop()
	c.limit = &io.LimitedReader{R: conn, N: maxHead}
	c.in = bufio.NewReader(c.limit)
	first, err := c.in.Peek(1)
	switch {
	case err != nil:
	case first[0] == statute.VersionSocks5:
		c.serveSOCKS()
	default:
		c.serveHTTP()
	}
}

// proxied is a program's connection to the proxy.
type proxied struct {
	net.Conn
	proxy *Proxy
	limit *io.LimitedReader
	in    *bufio.Reader // on limit
	idle  *time.Timer   // ends the connection
}

func (c *proxied) Read(b []byte) (int, error) { return c.in.Read(b) }

// carry copies bytes between the program and out until both have ended, or one fails. in has the
// program's data.
func (c *proxied) carry(in io.Reader, out *passage) {
	c.idle.Stop()
	c.limit.N = math.MaxInt64
	defer out.Close()
	cut := func(err error) {
		out.flow.end(err)
		_ = c.Close()
	}
	var down sync.WaitGroup
	down.Go(func() {
		if _, err := io.Copy(c.Conn, out); err != nil {
			cut(err)
		} else if err := closeWrite(c.Conn); err != nil {
			cut(err)
		}
	})
	if _, err := io.Copy(out, in); err != nil {
		cut(err)
	} else if err := closeWrite(out); err != nil {
		cut(err)
	}
	down.Wait()
}

// inTurn serialises concurrent reads: of two readers that wait on an SSH channel, only one gets its
// end.
type inTurn struct {
	net.Conn
	mu sync.Mutex
}

func (c *inTurn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Conn.Read(b)
}

func (c *inTurn) CloseWrite() error { return closeWrite(c.Conn) }

// keepName leaves name resolution to the dial.
type keepName struct{}

func (keepName) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, nil, nil
}

func (c *proxied) serveSOCKS() {
	nowhere := &net.TCPAddr{IP: net.IPv4zero} // the source address is not revealed
	server := socks5.NewServer(socks5.WithResolver(keepName{}),
		socks5.WithRule(&socks5.PermitCommand{EnableConnect: true}),
		socks5.WithConnectHandle(func(_ context.Context, w io.Writer, r *socks5.Request) error {
			host := r.DestAddr.FQDN
			if host == "" {
				host = r.DestAddr.IP.String()
			}
			out, err := c.proxy.dial(host, uint16(r.DestAddr.Port)) // #nosec G115 -- of two bytes
			if err != nil {
				reply := statute.RepHostUnreachable
				if _, ok := errors.AsType[refusal](err); ok {
					reply = statute.RepRuleFailure
				}
				return socks5.SendReply(w, reply, nowhere)
			}
			if err := socks5.SendReply(w, statute.RepSuccess, nowhere); err != nil {
				return errors.Join(err, out.Close())
			}
			c.carry(r.Reader, out)
			return nil
		}))
	_ = server.ServeConn(c) // the program knows why it ended
}

// splitAddress splits host:port. Without a port it returns otherwise.
func splitAddress(address string, otherwise uint16) (string, uint16, error) {
	host, digits, err := net.SplitHostPort(address)
	if err != nil {
		return address, otherwise, nil //nolint:nilerr // without a port
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 {
		return "", 0, fmt.Errorf("port %.20q: must be a number from 1 to 65535", digits)
	}
	return host, uint16(port), nil
}

// dialHost connects to host, a name or an address, if the policy allows it, and reports the event
// either way. ctx bounds the dial. Data is checked against the policy as it is written.
func (p *Proxy) dialHost(ctx context.Context, host string, port uint16) (*passage, error) {
	if !p.begin() {
		return nil, errClosed
	}
	conn, err := p.pass(ctx, host, port)
	if err != nil {
		p.wg.Done()
		return nil, err
	}
	return conn, nil
}

func (p *Proxy) pass(ctx context.Context, host string, port uint16) (*passage, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &flow{proto: "tcp", port: port, end: cancel}
	asked := netip.AddrPortFrom(netip.Addr{}, port)
	var why refusal
	if addr, err := netip.ParseAddr(host); err == nil {
		asked = netip.AddrPortFrom(addr.Unmap(), port)
	} else if name, ok := canonicalName(host); ok {
		f.name, why = name, p.current().refusesName(name, port)
		f.brokered = p.current().isBound(name, port)
	} else {
		host = host[strings.LastIndexByte(host, '@')+1:] // before it there may be a password
		host, why = "proxy", refusal{why: fmt.Sprintf("%.80q is not a name or an address", host)}
	}
	if why == (refusal{}) {
		why = p.admit(f)
	}
	if why != (refusal{}) {
		said := f.name
		if said == "" {
			said = host
		}
		p.event(Event{Kind: KindRefused, Proto: f.proto, Host: said, Addr: asked, Why: why.why,
			Opens: why.opens, Limit: why.limit})
		cancel(why)
		return nil, why
	}
	if f.brokered {
		near, far := net.Pipe()
		p.wg.Go(func() { p.broker(ctx, f, far) })
		return p.passage(ctx, f, &wholly{Conn: near}, func() { p.dismiss(f) }), nil
	}
	conn, err := p.open(ctx, f, asked)
	if err != nil {
		p.dismiss(f)
		cancel(err)
		return nil, err
	}
	return p.passage(ctx, f, conn, func() { p.ended(ctx, f, asked) }), nil
}

// passage returns conn as a connection of f. Its Close calls closed, and undoes begin.
func (g *gate) passage(ctx context.Context, f *flow, conn net.Conn, closed func()) *passage {
	c := &passage{Conn: conn, flow: f, inspection: g.inspect(f, ctx.Done())}
	stop := onEnd(ctx, func() { abort(conn) })
	c.over = func() {
		stop()
		_ = conn.Close()
		f.end(nil)
		c.using.Lock() // what it counts is final then
		defer c.using.Unlock()
		closed()
		g.wg.Done()
	}
	return c
}

// passage is a connection to the outside that stays subject to the policy.
type passage struct {
	net.Conn
	flow       *flow
	inspection *inspection // used by the writer
	over       func()      // closes the connection and reports its end
	once       sync.Once
	using      sync.RWMutex // read-locked by Read and Write
}

func (c *passage) Read(b []byte) (int, error) {
	c.using.RLock()
	defer c.using.RUnlock()
	n, err := c.Conn.Read(b)
	c.flow.received.Add(int64(n))
	if n > 0 || err != nil {
		c.inspection.hear(b[:n])
	}
	return n, err
}

func (c *passage) Write(b []byte) (int, error) {
	c.using.RLock()
	defer c.using.RUnlock()
	if err := c.inspection.write(c.Conn, b); err != nil {
		c.flow.end(err)
		return 0, err
	}
	return len(b), nil
}

// CloseWrite ends the sent data.
func (c *passage) CloseWrite() error {
	if err := c.inspection.atEnd(); err != nil {
		c.flow.end(err)
		return err
	}
	return closeWrite(c.Conn)
}

// Close ends the connection, and reports its end once.
func (c *passage) Close() error {
	c.once.Do(func() {
		c.inspection.close()
		c.over()
	})
	return nil
}
