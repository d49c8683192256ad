package sshd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits apply to clients before and after login. Defaults are OpenSSH's where it has them.
type Limits struct {
	Grace           time.Duration // time for a login; default 30 s
	Unauthenticated int           // connections that are not logged in; default 64
	// Number of those above which some are dropped at random; default 32.
	EarlyDrop int
	PerSource int // number of those from one IPv4 address or IPv6 /64; default 8
	// Further such connections for the admin's programs on this machine; 0: they count like others.
	Own      int
	Tries    int // failed attempts on one connection; default 6
	Sessions int // concurrent session channels of a connection; default 32
	// Concurrent channels of a connection, including sessions; default 256.
	Channels int
	Unread   int64 // unread bytes of a connection; default 32 MiB
	// Bytes in use by the process; above it, connections with the most unread bytes are ended;
	// default 1 GiB.
	Memory       int64
	Keepalive    time.Duration  // interval of keepalives to a silent client; default 30 s
	KeepaliveMax int            // unanswered keepalives before it is disconnected; default 4
	Exempt       []netip.Prefix // sources without PerSource limit and penalties
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.Unauthenticated, 64)
	set(&l.EarlyDrop, 32)
	set(&l.PerSource, 8)
	set(&l.Tries, 6)
	set(&l.Sessions, 32)
	set(&l.Channels, 256)
	set(&l.KeepaliveMax, 4)
	if l.Unread == 0 {
		l.Unread = 32 << 20
	}
	if l.Memory == 0 {
		l.Memory = 1 << 30
	}
	if l.Grace == 0 {
		l.Grace = 30 * time.Second
	}
	if l.Keepalive == 0 {
		l.Keepalive = 30 * time.Second
	}
	l.Exempt = slices.Clone(l.Exempt)
	return l
}

// settled is the minimum age of a connection that is not logged in before it is dropped for a new
// one. A login takes some ten milliseconds, so an older connection is unlikely to log in.
const settled = time.Second

// gate counts and limits the connections that are not logged in.
type gate struct {
	limits Limits
	now    func() time.Time
	chance func() float64 // in [0, 1)

	mu        sync.Mutex
	waiting   []*slot                // guarded by mu; oldest first
	sources   map[netip.Prefix]int   // guarded by mu; number of waiting by source
	penalties map[netip.Prefix]fines // guarded by mu
	// Guarded by mu; number of the admin's connections, which are not in waiting.
	own int
}

func newGate(l Limits) *gate {
	return &gate{limits: l, now: time.Now, chance: rand.Float64,
		sources: make(map[netip.Prefix]int), penalties: make(map[netip.Prefix]fines)}
}

// slot is a connection's place among those that are not logged in.
type slot struct {
	gate   *gate
	source netip.Prefix // zero for a peer without an IP address, such as a unix socket
	exempt bool
	own    bool // counted by gate.own; set by enter
	since  time.Time
	evict  func() // closes the connection

	failures int  // guarded by gate.mu; failed login attempts
	gone     bool // guarded by gate.mu; no longer waiting
	passed   bool // guarded by gate.mu; logged in
}

// enter returns a slot for a new connection from addr, or why there is none. own means that it
// belongs to the admin. evict is called without locks held when the connection must make room for a
// newer one.
func (g *gate) enter(addr net.Addr, own bool, evict func()) (*slot, error) {
	s := &slot{gate: g, since: g.now(), own: own, evict: evict}
	if tcp, ok := addr.(*net.TCPAddr); ok {
		s.source = sourceOf(tcp.AddrPort().Addr())
	}
	s.exempt = !s.source.IsValid() ||
		slices.ContainsFunc(g.limits.Exempt,
			func(p netip.Prefix) bool { return p.Contains(s.source.Addr()) })

	victim, err := g.admit(s)
	if victim != nil {
		victim.evict()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (g *gate) admit(s *slot) (victim *slot, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// Programs of the admin start many logins at once. Other users of this machine cannot take
	// these slots.
	if s.own = s.own && g.own < g.limits.Own; s.own {
		s.exempt = true
		g.own++
		return nil, nil
	}
	if !s.exempt {
		if until := g.penalties[s.source]; until.refuses(s.since) {
			return nil, errors.New("source is blocked for a while after failed logins")
		}
		if g.sources[s.source] >= g.limits.PerSource {
			return nil,
				fmt.Errorf("limit of %d connections of this source that are not logged in reached",
					g.limits.PerSource)
		}
	}
	if g.dropLocked() {
		// OpenSSH drops the newcomer. An attacker who fills all slots would then lock out
		// everybody, so here the oldest connection is dropped first, if it had enough time.
		if oldest := g.waiting[0]; s.since.Sub(oldest.since) >= settled {
			g.removeLocked(oldest)
			victim = oldest
		} else {
			return nil, fmt.Errorf("limit reached: %d connections are not logged in",
				len(g.waiting))
		}
	}
	g.waiting = append(g.waiting, s)
	if s.source.IsValid() {
		g.sources[s.source]++
	}
	return victim, nil
}

// dropLocked decides whether a connection must be dropped: never below EarlyDrop, always at
// Unauthenticated, in between with a probability that rises from 30 % (sshd_config(5),
// MaxStartups). The caller holds mu.
func (g *gate) dropLocked() bool {
	n, from, full := len(g.waiting), g.limits.EarlyDrop, g.limits.Unauthenticated
	switch {
	case n >= full:
		return true
	case n < from:
		return false
	}
	const rate = 0.3
	return g.chance() < rate+(1-rate)*float64(n-from)/float64(full-from)
}

func (g *gate) removeLocked(s *slot) {
	if s.gone {
		return
	}
	s.gone = true
	if s.own {
		g.own--
		return
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(w *slot) bool { return w == s })
	if s.source.IsValid() {
		if g.sources[s.source]--; g.sources[s.source] <= 0 {
			delete(g.sources, s.source)
		}
	}
}

// authenticated frees the slot after the login.
func (s *slot) authenticated() {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	s.passed = true
	s.gate.removeLocked(s)
}

// failed counts a failed login attempt; release charges for it.
func (s *slot) failed() {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	s.failures++
}

// release frees the slot of a connection that has ended, and charges its source if it never logged
// in.
func (s *slot) release() {
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	evicted := s.gone
	g.removeLocked(s)
	if s.passed || s.exempt {
		return
	}
	now := g.now()
	switch {
	case s.failures > 0:
		g.chargeLocked(s.source, now, fineFailed)
	case evicted || now.Sub(s.since) >= g.limits.Grace:
		g.chargeLocked(s.source, now, fineGrace)
	default:
		g.chargeLocked(s.source, now, fineNoTry)
	}
}

// sourceOf returns what counts as one source: an IPv4 address, or the /64 of an IPv6 address.
func sourceOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil { // only for an invalid address
		return netip.Prefix{}
	}
	return p
}
