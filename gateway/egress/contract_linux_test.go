package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/proxy"
)

// tier is a way for programs of a sandbox to reach the outside. All tiers have the same contract.
type tier struct {
	name string
	// begin creates the world's network.
	begin func(w *world, o Options) network
}

// network is the network of a tier.
type network interface {
	SetPolicy(*Policy)
	Close() error
	// connect connects to host, a name or an address, as a program does.
	connect(host string, port int) (net.Conn, error)
}

var tiers = []tier{
	{"tun", func(w *world, o Options) network {
		must(w.t, w.stack.Close())
		w.change = func(have *Options) { *have = o }
		w.start(o.Policy.Mode())
		return tunNetwork{w.stack, w}
	}},
	{"proxy, CONNECT", func(w *world, o Options) network { return newProxyNetwork(w, o, throughConnect) }},
	{"proxy, SOCKS5", func(w *world, o Options) network { return newProxyNetwork(w, o, throughSOCKS) }},
}

type tunNetwork struct {
	*Stack
	w *world
}

func (n tunNetwork) connect(host string, port int) (net.Conn, error) {
	if _, err := netip.ParseAddr(host); err != nil {
		list, err := (&net.Resolver{PreferGo: true,
			Dial: func(_ context.Context, network, _ string) (net.Conn, error) {
				return n.w.dial(network, "8.8.8.8:53")
			}}).LookupHost(context.Background(), host+".")
		if err != nil {
			return nil, err
		}
		host = list[0]
	}
	return n.w.dial("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
}

type proxyNetwork struct {
	*Proxy
	t       testing.TB
	address string
	through func(address, target string) (net.Conn, error)
}

func newProxyNetwork(w *world, o Options, through func(string, string) (net.Conn, error)) network {
	p, err := NewProxy(o)
	must(w.t, err)
	w.t.Cleanup(func() { p.Close() })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(w.t, err)
	accept(w.t, l, p.Serve)
	return proxyNetwork{p, w.t, l.Addr().String(), through}
}

func (n proxyNetwork) connect(host string, port int) (net.Conn, error) {
	conn, err := n.through(n.address, net.JoinHostPort(host, fmt.Sprint(port)))
	if err == nil {
		n.t.Cleanup(func() { conn.Close() })
		err = conn.SetDeadline(time.Now().Add(60 * time.Second))
	}
	return conn, err
}

func throughConnect(address, target string) (net.Conn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the proxy answers %s", answer.Status)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &buffered{conn.(*net.TCPConn), in}, nil
}

// buffered is a connection with data that was read already.
type buffered struct {
	*net.TCPConn
	in *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

func throughSOCKS(address, target string) (net.Conn, error) {
	d, err := proxy.SOCKS5("tcp", address, nil, proxy.Direct)
	if err != nil {
		return nil, err
	}
	return d.Dial("tcp", target)
}

// contract runs f with each tier, in a world of its own.
func contract(t *testing.T, mode Mode, allow []string, f func(t *testing.T, w *world, n network)) {
	for _, tier := range tiers {
		t.Run(tier.name, func(t *testing.T) {
			w := newWorld(t, mode)
			f(t, w, tier.begin(w, Options{Policy: policy(t, mode, allow...), Resolve: w.resolve,
				Event: w.event, Budget: NewBudget(400), Connections: 30}))
		})
	}
}

// answers connects to host, and returns an error unless it answers.
func answers(n network, host string, port int) error {
	c, err := n.connect(host, port)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

// Every tier blocks closed addresses, by address and by name, at once and with the same text. They
// receive nothing.
func TestContractClosed(t *testing.T) {
	contract(t, ModeFiltered, nil, func(t *testing.T, w *world, n network) {
		var reached atomic.Int64
		count := func(c net.Conn) { reached.Add(1); greets(c) }
		w.internet.listen(t, 80, count)
		here, err := net.Listen("tcp", ":80")
		must(t, err)
		accept(t, here, count)
		for i, a := range append(append([]string{"127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"},
			closedThere...), closedHere...) {
			name := fmt.Sprintf("closed%d.test", i)
			w.mu.Lock()
			w.names[name] = addrs(a)
			w.mu.Unlock()
			want := n.(interface{ current() *Policy }).current().refuses(
				"", netip.AddrPortFrom(netip.MustParseAddr(a), 80), OwnAddresses())
			for _, host := range []string{a, name} {
				if _, tun := n.(tunNetwork); tun && host == a &&
					(i < 4 || strings.Contains(a, ":")) {
					continue // the sandbox's own loopback, or a missing family
				} else if tun && host == a && Names.Contains(netip.MustParseAddr(a)) {
					continue // represents a name
				}
				start := time.Now()
				if err := answers(n, host, 80); err == nil || time.Since(start) > 5*time.Second {
					t.Errorf("%s, which is %s: %v after %v", host, a, err, time.Since(start))
				}
				e := w.await("refused "+host,
					func(e Event) bool { return e.Kind == KindRefused && e.Proto == "tcp" })
				if e.Why != want.why || e.Opens != want.opens || e.Addr.Port() != 80 {
					t.Errorf("%s, which is %s: got %+v, want %+v", host, a, e, want)
				}
			}
		}
		if got := reached.Load(); got != 0 {
			t.Errorf("%d were reached", got)
		}
		for _, host := range []string{public, "public.test", "mixed.test", "v6.test"} {
			must(t, answers(n, host, 80))
			if e := w.await("opened", is(KindOpened, host)); e.Addr.Port() != 80 {
				t.Errorf("got %+v", e)
			}
			w.await("closed", is(KindClosed, host))
		}
		n.SetPolicy(policy(t, ModeFiltered, "10.77.0.1:80", "10.9.9.1:80"))
		for _, host := range []string{"10.77.0.1", "10.9.9.1", "private.test"} {
			must(t, answers(n, host, 80))
		}
	})
}

func TestContractAllowlist(t *testing.T) {
	contract(t, ModeAllowlist, []string{"public.test:80", "private.test", "host.test", "cdn.test"},
		func(t *testing.T, w *world, n network) {
			w.internet.listen(t, 80, greets)
			w.internet.listen(t, 81, greets)
			must(t, answers(n, "public.test", 80))
			for what, c := range map[string]struct {
				host string
				port int
			}{"another port": {"public.test", 81}, "its address": {public, 80},
				"another name": {"two.test", 80}, "private": {"private.test", 80},
				"the host": {"host.test", 80}} {
				if err := answers(n, c.host, c.port); err == nil {
					t.Errorf("%s is open", what)
				}
				w.await(what, is(KindRefused, c.host))
			}
		})
}

// A listed name does not give access to others behind the same address. A connection that is no
// longer allowed ends.
func TestContractHoldsAfterwards(t *testing.T) {
	contract(t, ModeAllowlist, []string{"cdn.test", "public.test"},
		func(t *testing.T, w *world, n network) {
			w.internet.listen(t, 80, echoes)
			for said, ok := range map[string]bool{"cdn.test": true, "public.test": true,
				"other.test": false} {
				c, err := n.connect("cdn.test", 80)
				must(t, err)
				fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", said)
				if _, err := io.ReadFull(c, make([]byte, 1)); (err == nil) != ok {
					t.Errorf("Host: %s: %v", said, err)
				}
				if !ok {
					if e := w.await(said, is(KindRefused, "cdn.test")); e.Opens != "other.test:80" {
						t.Errorf("got %+v", e)
					}
				}
			}
			c, err := n.connect("public.test", 80)
			must(t, err)
			fmt.Fprint(c, "SSH-2.0-x\r\n")
			_, err = io.ReadFull(c, make([]byte, 11))
			must(t, err)
			n.SetPolicy(policy(t, ModeAllowlist))
			if e := w.await("closed", func(e Event) bool {
				return is(KindClosed, "public.test")(e)
			}); e.Why != errPolicy.Error() || e.Sent != 11 || e.Received != 11 {
				t.Errorf("got %+v", e)
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
				t.Error("still open")
			}
		})
}

// The entry * opens a sandbox to what a filtered one reaches, and no more. Without it, what only it
// allowed ends.
func TestContractEvery(t *testing.T) {
	contract(t, ModeAllowlist, []string{"*"}, func(t *testing.T, w *world, n network) {
		w.internet.listen(t, 80, echoes)
		for _, host := range []string{"private.test", "host.test"} {
			if err := answers(n, host, 80); err == nil {
				t.Errorf("%s is open", host)
			}
		}
		c, err := n.connect(public, 80)
		must(t, err)
		said := "GET / HTTP/1.1\r\nHost: whatever.test\r\n\r\n"
		fmt.Fprint(c, said)
		_, err = io.ReadFull(c, make([]byte, len(said)))
		must(t, err)
		n.SetPolicy(policy(t, ModeAllowlist))
		w.await("closed", is(KindClosed, public))
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			t.Error("still open")
		}
	})
}

// Each direction ends on its own, and all bytes arrive.
func TestContractEnds(t *testing.T) {
	contract(t, ModeFiltered, nil, func(t *testing.T, w *world, n network) {
		w.internet.listen(t, 7, func(c net.Conn) {
			n, _ := io.Copy(io.Discard, c)
			fmt.Fprintf(c, "%d", n)
		})
		c, err := n.connect("public.test", 7)
		must(t, err)
		_, err = c.Write(make([]byte, 5<<20+7))
		must(t, err)
		must(t, c.(interface{ CloseWrite() error }).CloseWrite())
		if got, err := io.ReadAll(c); string(got) != fmt.Sprint(5<<20+7) || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestContractBounds(t *testing.T) {
	contract(t, ModeFiltered, nil, func(t *testing.T, w *world, n network) {
		w.internet.listen(t, 7, echoes)
		held := 0
		for range 40 {
			if _, err := n.connect(public, 7); err == nil {
				held++
			}
		}
		if held != 30 {
			t.Errorf("%d connections are open, want 30", held)
		}
		for range 10 {
			if e := w.await("refused", is(KindRefused,
				public)); e.Why != "30 connections are open, the limit of this sandbox" {
				t.Errorf("got %+v", e)
			}
		}
		must(t, n.Close())
		if _, tun := n.(tunNetwork); tun {
			return // the program does not wait for it
		}
		if err := answers(n, public, 7); err == nil {
			t.Error("open after Close")
		}
	})
}
