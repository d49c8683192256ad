package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

// nowhere discards packets.
type nowhere struct{}

func (nowhere) write(vnetHeader, [][]byte) {}

// offline returns a stack without a device, and its events.
func offline(t testing.TB, p *Policy, resolve func(string) ([]netip.Addr, error)) (*Stack,
	func() []Event) {
	t.Helper()
	var mu sync.Mutex
	var events []Event
	s, err := newStack(Options{
		Policy: p,
		Resolve: func(_ context.Context, name string) (
			[]netip.Addr, error) {
			return resolve(name)
		},
		Own:   func() []netip.Prefix { return nil },
		Event: func(e Event) { mu.Lock(); defer mu.Unlock(); events = append(events, e) },
	}, nowhere{})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, func() []Event { mu.Lock(); defer mu.Unlock(); return events }
}

func query(t testing.TB, name string, kind dnsmessage.Type,
	change func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind,
			Class: dnsmessage.ClassINET}},
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	must(t, err)
	return b
}

func parse(t testing.TB, b []byte) (m dnsmessage.Message) {
	t.Helper()
	must(t, m.Unpack(b))
	if !m.Response || m.ID != 77 {
		t.Fatalf("no answer to it: %+v", m.Header)
	}
	return m
}

func TestAnswers(t *testing.T) {
	asked := make(map[string]int)
	var mu sync.Mutex
	s, events := offline(t, policy(t, ModeAllowlist, "a.test", "*.b.test", "c.test:443",
		"broken.test"), func(name string) ([]netip.Addr, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[name]++
		switch name {
		case "a.test", "x.b.test", "c.test":
			return addrs(public), nil
		case "broken.test":
			return nil, errors.New("server misbehaving")
		}
		return nil, nil
	})
	for _, c := range []struct {
		name  string
		kind  dnsmessage.Type
		code  dnsmessage.RCode
		count int
	}{
		{"a.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"A.Test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"a.test.", dnsmessage.TypeALL, dnsmessage.RCodeSuccess, 1},
		{"a.test.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 0},
		{"a.test.", 65, dnsmessage.RCodeSuccess, 0}, // HTTPS
		{"a.test.", 64, dnsmessage.RCodeSuccess, 0}, // SVCB
		{"a.test.", dnsmessage.TypeMX, dnsmessage.RCodeSuccess, 0},
		{"x.b.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"c.test.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"none.b.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		{"broken.test.", dnsmessage.TypeA, dnsmessage.RCodeServerFailure, 0},
		{"b.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		{"b.test.", dnsmessage.TypeAAAA, dnsmessage.RCodeNameError, 0},
		{"tunnel.other.test.", dnsmessage.TypeTXT, dnsmessage.RCodeNameError, 0},
		{"bad name.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		{".", dnsmessage.TypeNS, dnsmessage.RCodeNameError, 0},
		{"localhost.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"x.localhost.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 0},
		{"1.0.0.10.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, 0},
		{"0.10.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, 0},
		{"1.0.ip6.arpa.", dnsmessage.TypePTR, dnsmessage.RCodeNameError, 0},
	} {
		m := parse(t, s.answer(t.Context(), query(t, c.name, c.kind, nil)))
		if m.RCode != c.code || len(m.Answers) != c.count {
			t.Errorf("%s %s: got %s and %d answers", c.name, c.kind, m.RCode, len(m.Answers))
		}
	}
	if diff := cmp.Diff(map[string]int{"a.test": 1, "x.b.test": 1, "c.test": 1, "none.b.test": 1,
		"broken.test": 1}, asked); diff != "" {
		t.Errorf("asked upstream: %s", diff)
	}
	var got []string
	for _, e := range events() {
		got = append(got, fmt.Sprint(e.Kind, " ", e.Proto, " ", e.Host, " ", e.Why))
	}
	if diff := cmp.Diff([]string{
		"failed dns broken.test server misbehaving", "refused dns b.test not on the list",
		"refused dns tunnel.other.test not on the list",
	}, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnswerForms(t *testing.T) {
	s, _ := offline(t, policy(t, ModeFiltered),
		func(string) ([]netip.Addr, error) { return addrs(public), nil })
	m := parse(t, s.answer(t.Context(), query(t, "A.Test.", dnsmessage.TypeA, nil)))
	// Resolvers that mix cases check for theirs.
	if got := m.Questions[0].Name.String(); got != "A.Test." {
		t.Errorf("asked for A.Test., answered %s", got)
	}
	inside := netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A)
	if !Names.Contains(inside) || len(m.Additionals) != 0 {
		t.Errorf("got %v, %v", inside, m.Additionals)
	}
	if name, ok := s.names.name(inside); !ok || name != "a.test" {
		t.Errorf("%s stands for %q", inside, name)
	}
	four := inside.As4()
	m = parse(t, s.answer(t.Context(), query(t, fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", four[3],
		four[2], four[1], four[0]), dnsmessage.TypePTR, nil)))
	if len(m.Answers) != 1 ||
		m.Answers[0].Body.(*dnsmessage.PTRResource).PTR.String() != "a.test." {
		t.Errorf("got %v", m.Answers)
	}
	for name, c := range map[string]struct {
		change func(*dnsmessage.Message)
		code   dnsmessage.RCode
	}{
		"operation":     {func(m *dnsmessage.Message) { m.OpCode = 5 }, dnsmessage.RCodeNotImplemented},
		"class":         {func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }, dnsmessage.RCodeRefused},
		"no question":   {func(m *dnsmessage.Message) { m.Questions = nil }, dnsmessage.RCodeFormatError},
		"two questions": {func(m *dnsmessage.Message) { m.Questions = append(m.Questions, m.Questions[0]) }, dnsmessage.RCodeFormatError},
	} {
		if m := parse(t, s.answer(t.Context(), query(t, "a.test.", dnsmessage.TypeA,
			c.change))); m.RCode != c.code || len(m.Answers) != 0 {
			t.Errorf("%s: got %s", name, m.RCode)
		}
	}
	m = parse(t, s.answer(t.Context(), query(t, "a.test.", dnsmessage.TypeA,
		func(m *dnsmessage.Message) {
			var opt dnsmessage.ResourceHeader
			must(t, opt.SetEDNS0(4096, dnsmessage.RCodeSuccess, true))
			m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
		})))
	if len(m.Additionals) != 1 || m.Additionals[0].Header.Type != dnsmessage.TypeOPT {
		t.Errorf("EDNS was answered with %v", m.Additionals)
	}
	if got := s.answer(t.Context(), query(t, "a.test.", dnsmessage.TypeA,
		func(m *dnsmessage.Message) { m.Response = true })); got != nil {
		t.Error("an answer was answered")
	}
}

// Names get the same addresses in another directory, and no two names share one.
func TestNamesKeepTheirAddresses(t *testing.T) {
	resolve := func(context.Context, string) ([]netip.Addr, error) { return addrs(public), nil }
	a, b := newDirectory(resolve), newDirectory(resolve)
	seen := make(map[netip.Addr]string)
	for i := range 2000 {
		name := fmt.Sprintf("n%d.test", i)
		_, inside, err := a.addresses(t.Context(), name)
		must(t, err)
		if other, ok := seen[inside]; ok || !Names.Contains(inside) {
			t.Fatalf("%s and %s are %s", name, other, inside)
		}
		seen[inside] = name
	}
	_, want, err := a.addresses(t.Context(), "n5.test")
	must(t, err)
	_, got, err := b.addresses(t.Context(), "n5.test")
	must(t, err)
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The number of names of a sandbox is limited, and those in use stay.
func TestNamesAreBounded(t *testing.T) {
	d := newDirectory(func(context.Context, string) ([]netip.Addr, error) {
		return addrs(public), nil
	})
	_, used, err := d.addresses(t.Context(), "used.test")
	must(t, err)
	_, first, err := d.addresses(t.Context(), "first.test")
	must(t, err)
	for i := range maxNames {
		if _, _, err := d.addresses(t.Context(), fmt.Sprintf("n%d.test", i)); err != nil {
			t.Fatal(err)
		}
		if _, ok := d.name(used); !ok {
			t.Fatalf("a name in use was forgotten after %d", i)
		}
	}
	if name, ok := d.name(first); ok && name == "first.test" {
		t.Error("the unused name is still there")
	}
	if len(d.byName) != maxNames || len(d.byAddr) != maxNames || d.used.Len() != maxNames {
		t.Errorf("got %d, %d, %d", len(d.byName), len(d.byAddr), d.used.Len())
	}
}

// The number of addresses of a name is limited, because a sandbox may control the name server.
func TestAddressesOfANameAreBounded(t *testing.T) {
	var many []netip.Addr
	for a := netip.MustParseAddr("203.0.113.1"); len(many) < 5000; a = a.Next() {
		many = append(many, a)
	}
	d := newDirectory(func(context.Context, string) ([]netip.Addr, error) { return many, nil })
	real, inside, err := d.addresses(t.Context(), "many.test")
	if err != nil || !inside.IsValid() {
		t.Fatalf("got %v, %v", inside, err)
	}
	if kept := d.byName["many.test"].real; len(real) != maxReal || cap(kept) > 2*maxReal {
		t.Errorf("got %d addresses, kept in room for %d; want %d", len(real), cap(kept), maxReal)
	}
}

// Queries over TCP have the same limit as those over UDP.
func TestQueriesByTCPAreBounded(t *testing.T) {
	asked, answer := make(chan struct{}, 2*dnsInFlight), make(chan struct{})
	s, _ := offline(t, policy(t, ModeFiltered), func(string) ([]netip.Addr, error) {
		asked <- struct{}{}
		<-answer
		return addrs(public), nil
	})
	var wg sync.WaitGroup
	defer wg.Wait()
	var conns []net.Conn
	for i := range dnsInFlight + 50 {
		near, far := net.Pipe()
		conns = append(conns, near)
		defer near.Close()
		wg.Go(func() { s.serveDNS(t.Context(), far) })
		q := query(t, fmt.Sprintf("n%d.test.", i), dnsmessage.TypeA, nil)
		// Returns when it has been read.
		_, err := near.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...))
		must(t, err)
	}
	for range dnsInFlight {
		<-asked
	}
	if len(s.asking) != dnsInFlight || len(asked) > 0 {
		t.Errorf("%d slots are taken, and %d lookups more are under way", len(s.asking), len(asked))
	}
	close(answer)
	for _, c := range conns {
		if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(query(f, "a.test.", dnsmessage.TypeA, nil))
	f.Add(query(f, "1.0.0.10.in-addr.arpa.", dnsmessage.TypePTR, nil))
	// A name that points at itself.
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1})
	s, _ := offline(f, policy(f, ModeFiltered),
		func(string) ([]netip.Addr, error) { return addrs(public), nil })
	f.Fuzz(func(t *testing.T, b []byte) {
		reply := s.answer(t.Context(), b)
		if reply == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil || !m.Response {
			t.Fatalf("%v: %x", err, reply)
		}
		if len(reply) > 512 && len(m.Questions) == 1 {
			t.Fatalf("an answer of %d bytes", len(reply))
		}
	})
}
