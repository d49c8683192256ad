package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
)

// bound returns a policy in which cdn.test is bound.
func bound(t testing.TB, mode Mode, allow ...string) *Policy {
	t.Helper()
	p, err := NewPolicy(Rules{Mode: mode, Trusted: allow, Bound: []string{"cdn.test"}})
	must(t, err)
	return p
}

// relaying is a broker that copies bytes, after a line with the name.
func relaying(ctx context.Context, name string, conn net.Conn,
	dial func(context.Context) (net.Conn, error)) {
	defer conn.Close()
	out, err := dial(ctx)
	if err != nil {
		fmt.Fprintf(conn, "error: %v\n", err)
		return
	}
	defer out.Close()
	fmt.Fprintf(conn, "broker of %s\n", name)
	go func() { // ends with out
		_, _ = io.Copy(out, conn)
		out.Close()
	}()
	_, _ = io.Copy(conn, out)
}

// A program that ends its connection to a broker ends it without an error.
func TestWholly(t *testing.T) {
	near, far := net.Pipe()
	c := &wholly{Conn: near}
	must(t, c.CloseWrite())
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want io.EOF", err)
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the broker's end: got %v, want io.EOF", err)
	}
	near, _ = net.Pipe()
	c = &wholly{Conn: near}
	must(t, c.Close())
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a connection that was cut: got %v, want an error", err)
	}
}

// with begins a network of the tier with the relaying broker.
func (tier tier) with(w *world, p *Policy) network {
	return tier.begin(w, Options{Policy: p, Resolve: w.resolve, Event: w.event,
		Budget: NewBudget(400), Connections: 30, Broker: relaying})
}

// Port 443 of a bound name is open, and only the broker reaches it. Its own connections have the
// events.
func TestContractBound(t *testing.T) {
	for _, tier := range tiers {
		t.Run(tier.name, func(t *testing.T) {
			w := newWorld(t, ModeAllowlist)
			n := tier.with(w, bound(t, ModeAllowlist, "public.test"))
			w.internet.listen(t, 443, echoes)
			w.internet.listen(t, 80, greets)
			c, err := n.connect("cdn.test", 443)
			must(t, err)
			const data = "any bytes: no inspection"
			fmt.Fprint(c, data)
			want := "broker of cdn.test\n" + data
			got := make([]byte, len(want))
			if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
				t.Errorf("got %q, %v", got, err)
			}
			e := w.await("opened", is(KindOpened, "cdn.test"))
			if e.Addr.String() != public+":443" {
				t.Errorf("got %+v", e)
			}
			c.Close()
			if e := w.await("closed", is(KindClosed, "cdn.test")); e.Sent != int64(len(data)) ||
				e.Received != int64(len(data)) || e.Why != "" {
				t.Errorf("got %+v", e)
			}
			if err := answers(n, "cdn.test", 80); err == nil {
				t.Error("another port is open")
			}
			w.await("another port", is(KindRefused, "cdn.test"))

			// Another listed name does not lead to the bound one's server.
			c, err = n.connect("public.test", 443)
			must(t, err)
			_, err = c.Write(hello(t, "cdn.test"))
			must(t, err)
			if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
				t.Error("a ClientHello for the bound name passes on a connection to another")
			}
			if e := w.await("fronting", is(KindRefused, "public.test")); e.Opens != "" ||
				e.Why != "it is for cdn.test, which a secret binds: connect to that name" {
				t.Errorf("got %+v", e)
			}
		})
	}
}

// A bound name gives no access to closed addresses.
func TestContractBoundAndClosed(t *testing.T) {
	for _, tier := range tiers {
		t.Run(tier.name, func(t *testing.T) {
			w := newWorld(t, ModeFiltered)
			n := tier.with(w, bound(t, ModeFiltered))
			w.mu.Lock()
			w.names["cdn.test"] = addrs("10.77.0.1")
			w.mu.Unlock()
			w.internet.listen(t, 443, echoes)
			c, err := n.connect("cdn.test", 443)
			must(t, err)
			const want = "error: 10.77.0.1 is in 10.0.0.0/8, which is closed\n"
			if got, err := io.ReadAll(c); err != nil || string(got) != want {
				t.Errorf("got %q, %v", got, err)
			}
			w.await("refused", is(KindRefused, "cdn.test"))
		})
	}
}

// Connections end when their name is bound, or no longer bound.
func TestContractBindingChanges(t *testing.T) {
	for _, tier := range tiers {
		t.Run(tier.name, func(t *testing.T) {
			w := newWorld(t, ModeFiltered)
			n := tier.with(w, policy(t, ModeFiltered))
			w.internet.listen(t, 443, echoes)
			for _, change := range []*Policy{bound(t, ModeFiltered), policy(t, ModeFiltered)} {
				c, err := n.connect("cdn.test", 443)
				must(t, err)
				fmt.Fprint(c, "SSH-2.0-x\r\n")
				_, err = io.ReadFull(c, make([]byte, 5))
				must(t, err)
				w.await("opened", is(KindOpened, "cdn.test"))
				n.SetPolicy(change)
				if e := w.await("closed", is(KindClosed, "cdn.test")); e.Why != errPolicy.Error() {
					t.Errorf("got %+v", e)
				}
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Logf("it ends with %v", err) // a reset, or an end
				}
			}
		})
	}
}

func TestBoundByUDPIsRefused(t *testing.T) {
	w := newWorld(t, ModeFiltered)
	w.stack.SetPolicy(bound(t, ModeFiltered))
	w.internet.listenUDP(t, 443, func(b []byte) []byte { return b })
	c, err := w.dial("udp", w.inside("cdn.test")+":443")
	must(t, err)
	fmt.Fprint(c, "hello")
	if _, err := c.Read(make([]byte, 5)); err == nil {
		t.Error("it is open")
	}
	if e := w.await("refused", is(KindRefused, "cdn.test")); e.Why != whyBound {
		t.Errorf("got %+v", e)
	}
}

func TestBoundNames(t *testing.T) {
	for name, ok := range map[string]bool{"api.test": true, "API.test.": true, "*.api.test": false,
		"10.0.0.1": false, "metadata.google.internal": false, "": false} {
		p, err := NewPolicy(Rules{Mode: ModeAllowlist, Bound: []string{name}})
		if (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
		if ok && (!p.isBound("api.test", 443) || p.isBound("api.test", 80) ||
			!p.listsName("api.test", 0) || p.listsName("api.test", 80)) {
			t.Errorf("%q is not bound", name)
		}
	}
}
