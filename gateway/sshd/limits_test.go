package sshd

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

// testGate is a gate with the test's own clock and random numbers.
type testGate struct {
	*gate
	clock  time.Time
	chance float64
}

func newTestGate(l Limits) *testGate {
	g := &testGate{gate: newGate(l.withDefaults()), clock: time.Unix(1_800_000_000, 0), chance: 1}
	g.now = func() time.Time { return g.clock }
	g.gate.chance = func() float64 { return g.chance }
	return g
}

// from enters a connection from a source.
func (g *testGate) from(ip string) (*slot, error) {
	return g.enter(&net.TCPAddr{IP: net.ParseIP(ip), Port: 4711}, false, func() {})
}

func TestPerSource(t *testing.T) {
	g := newTestGate(Limits{})
	var slots []*slot
	for i := range 8 {
		s, err := g.from("192.0.2.1")
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		slots = append(slots, s)
	}
	if _, err := g.from("192.0.2.1"); err == nil {
		t.Error("a ninth connection of one source was let in")
	}
	if _, err := g.from("192.0.2.2"); err != nil {
		t.Errorf("another source: %v", err)
	}
	slots[0].authenticated()
	if _, err := g.from("192.0.2.1"); err != nil {
		t.Errorf("after one had logged in: %v", err)
	}
}

func TestSourceOf(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":          "192.0.2.1/32",
		"::ffff:192.0.2.1":   "192.0.2.1/32",
		"2001:db8::1":        "2001:db8::/64",
		"2001:db8::2:0:0:1":  "2001:db8::/64",
		"2001:db8:0:1::1":    "2001:db8:0:1::/64",
		"fe80::1%eth0":       "fe80::/64",
		"::1":                "::/64",
		"2001:db8:0:1:9::%x": "2001:db8:0:1::/64",
	} {
		if got := sourceOf(netip.MustParseAddr(in)).String(); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestEarlyDrop(t *testing.T) {
	g := newTestGate(Limits{})
	fill := func(n int) {
		for len(g.waiting) < n {
			i := len(g.waiting)
			g.chance = 1 // no drops
			if _, err := g.from(fmt.Sprintf("198.51.%d.%d", i/8, i%8)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		waiting int
		chance  float64
		drop    bool
	}{
		{31, 0, false},
		{32, 0.29, true},
		{32, 0.31, false},
		{48, 0.64, true},
		{48, 0.66, false},
		{64, 0.999, true},
	} {
		fill(tt.waiting)
		g.chance = tt.chance
		if got := g.dropLocked(); got != tt.drop {
			t.Errorf("%d waiting, chance %v: drop %v, want %v", tt.waiting, tt.chance, got, tt.drop)
		}
	}
}

// When all slots are taken, old connections without a login make room for new ones.
func TestFullMakesRoom(t *testing.T) {
	g := newTestGate(Limits{})
	evicted := 0
	for i := range 64 {
		_, err := g.enter(&net.TCPAddr{IP: net.IPv4(198, 51, byte(i), 1)}, false,
			func() { evicted++ })
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.from("192.0.2.1"); err == nil {
		t.Error("admitted before the others had their time")
	}
	g.clock = g.clock.Add(settled)
	good, err := g.from("192.0.2.1")
	if err != nil {
		t.Fatalf("good source: %v", err)
	}
	if evicted != 1 || len(g.waiting) != 64 {
		t.Errorf("%d evicted, %d waiting, want 1 and 64", evicted, len(g.waiting))
	}
	good.authenticated()
	if len(g.waiting) != 63 {
		t.Errorf("%d waiting after the login, want 63", len(g.waiting))
	}
}

func TestPenalties(t *testing.T) {
	const ip = "192.0.2.1"
	visit := func(t *testing.T, g *testGate, do func(*slot)) {
		t.Helper()
		s, err := g.from(ip)
		if err != nil {
			t.Fatal(err)
		}
		do(s)
		s.release()
	}
	fail := func(s *slot) { s.failed() }
	t.Run("three failures shut out, for a while", func(t *testing.T) {
		g := newTestGate(Limits{})
		for range 3 {
			visit(t, g, fail)
		}
		if _, err := g.from(ip); err == nil {
			t.Error("let in after three failed connections")
		}
		if _, err := g.from("192.0.2.2"); err != nil {
			t.Errorf("another source: %v", err)
		}
		g.clock = g.clock.Add(fineMin)
		if _, err := g.from(ip); err != nil {
			t.Errorf("after the penalty: %v", err)
		}
	})
	t.Run("two failures do not", func(t *testing.T) {
		g := newTestGate(Limits{})
		visit(t, g, fail)
		visit(t, g, fail)
		visit(t, g, func(s *slot) { s.failed(); s.authenticated() })
		if _, err := g.from(ip); err != nil {
			t.Error(err)
		}
	})
	t.Run("a successful login costs nothing", func(t *testing.T) {
		g := newTestGate(Limits{})
		for range 100 {
			visit(t, g, (*slot).authenticated)
		}
	})
	t.Run("no more than ten minutes", func(t *testing.T) {
		g := newTestGate(Limits{})
		var slots []*slot
		for range 8 {
			s, err := g.from(ip)
			if err != nil {
				t.Fatal(err)
			}
			slots = append(slots, s)
		}
		g.clock = g.clock.Add(30 * time.Second)
		for range 40 {
			for _, s := range slots {
				s.release() // after the grace period: 10 s each
			}
		}
		g.clock = g.clock.Add(fineMax)
		if _, err := g.from(ip); err != nil {
			t.Error(err)
		}
	})
	t.Run("an exempt source is never shut out", func(t *testing.T) {
		g := newTestGate(Limits{Exempt: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
		for range 20 {
			visit(t, g, fail)
		}
	})
	t.Run("the memory is bounded", func(t *testing.T) {
		g := newTestGate(Limits{})
		for i := range maxFined + 100 {
			s := &slot{gate: g.gate, since: g.clock, failures: 1,
				source: netip.PrefixFrom(
					netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)}
			s.release()
		}
		if n := len(g.penalties); n > maxFined {
			t.Errorf("%d sources are remembered, want at most %d", n, maxFined)
		}
	})
}

// The admin's programs have their own slots, which others cannot fill, and do not use others'
// slots. Further ones count like others.
func TestOwnUsersPlaces(t *testing.T) {
	g := newTestGate(Limits{Own: 100, Unauthenticated: 4, EarlyDrop: 1, PerSource: 2})
	g.chance = 0 // every possible drop happens
	enter := func(own bool) (*slot, error) {
		return g.enter(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, own,
			func() { t.Error("a connection was evicted") })
	}
	stranger, err := enter(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enter(false); err == nil {
		t.Fatal("the strangers' places are not full")
	}
	var own []*slot
	for i := range 100 {
		s, err := enter(true)
		if err != nil {
			t.Fatalf("own connection %d: %v", i, err)
		}
		own = append(own, s)
	}
	if _, err := enter(true); err == nil {
		t.Error("there is no end to one's own places")
	}
	if len(g.waiting) != 1 {
		t.Errorf("%d are among the others, want the stranger", len(g.waiting))
	}
	own[0].authenticated()
	own[1].release()
	own[1].release()
	for range 2 {
		if _, err := enter(true); err != nil {
			t.Errorf("in a slot that was free again: %v", err)
		}
	}
	if _, err := enter(true); err == nil {
		t.Error("one place was given twice")
	}
	stranger.release()
	if _, err := enter(false); err != nil {
		t.Errorf("a stranger in a stranger's place: %v", err)
	}
}
