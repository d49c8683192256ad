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

// Limits bound what clients may use before and after login. The defaults are OpenSSH's where it has them.
type Limits struct {
	Grace           time.Duration  // for the whole login; 30 s
	Unauthenticated int            // connections that are not logged in; 64
	EarlyDrop       int            // of those, from how many on some are dropped at random; 32
	PerSource       int            // of those, from one IPv4 address or IPv6 /64; 8
	Own             int            // connections that are not logged in, beside all these, of programs that the daemon's own user runs on this machine; 0: they are like the others
	Tries           int            // failed attempts on one connection; 6
	Sessions        int            // session channels of one connection at once; 32
	Channels        int            // channels of one connection at once, sessions included; 256
	Unread          int64          // bytes of one connection that wait for a reader; 32 MiB
	Memory          int64          // bytes of all that the process has in memory, from which on the connections that keep most unread are ended; 1 GiB
	Keepalive       time.Duration  // between probes of a silent client; 30 s
	KeepaliveMax    int            // unanswered probes until it is gone; 4
	Exempt          []netip.Prefix // sources that are neither counted by PerSource nor penalised
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

// settled is how old a connection that is not logged in must be before it makes room for a newcomer. A login takes some
// ten milliseconds: whoever is older than this does not want in.
const settled = time.Second

// gate counts the connections that are not logged in.
type gate struct {
	limits Limits
	now    func() time.Time
	chance func() float64 // in [0, 1)

	mu        sync.Mutex
	waiting   []*slot                // guarded by mu; oldest first
	sources   map[netip.Prefix]int   // guarded by mu; how many of waiting
	penalties map[netip.Prefix]fines // guarded by mu
	own       int                    // guarded by mu; of the daemon's own user, which are not among waiting
}

func newGate(l Limits) *gate {
	return &gate{limits: l, now: time.Now, chance: rand.Float64,
		sources: make(map[netip.Prefix]int), penalties: make(map[netip.Prefix]fines)}
}

// slot is the place of one connection among those that are not logged in.
type slot struct {
	gate   *gate
	source netip.Prefix // zero for a peer that has no IP address, such as a unix socket
	exempt bool
	own    bool // among gate.own; settled when it enters
	since  time.Time
	evict  func() // closes the connection

	failures int  // guarded by gate.mu; failed attempts to log in
	gone     bool // guarded by gate.mu; no longer among the waiting
	passed   bool // guarded by gate.mu; logged in
}

// enter gives a new connection from addr a slot, or says why it gets none. own says that it is of the daemon's own user. evict is
// called, outside of any lock, when the connection has to make room for a newer one.
func (g *gate) enter(addr net.Addr, own bool, evict func()) (*slot, error) {
	s := &slot{gate: g, since: g.now(), own: own, evict: evict}
	if tcp, ok := addr.(*net.TCPAddr); ok {
		s.source = sourceOf(tcp.AddrPort().Addr())
	}
	s.exempt = !s.source.IsValid() ||
		slices.ContainsFunc(g.limits.Exempt, func(p netip.Prefix) bool { return p.Contains(s.source.Addr()) })

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
	// Programs that one user starts at once log in at once, and nobody else of this machine can hold their places.
	if s.own = s.own && g.own < g.limits.Own; s.own {
		s.exempt = true
		g.own++
		return nil, nil
	}
	if !s.exempt {
		if until := g.penalties[s.source]; until.refuses(s.since) {
			return nil, errors.New("this source is penalised for its failed logins")
		}
		if g.sources[s.source] >= g.limits.PerSource {
			return nil, fmt.Errorf("%d connections of this source are not logged in", g.limits.PerSource)
		}
	}
	if g.dropLocked() {
		// OpenSSH drops the newcomer. Whoever keeps all slots busy would then keep everybody out, so the one that has
		// been trying longest goes first, if it had its time.
		if oldest := g.waiting[0]; s.since.Sub(oldest.since) >= settled {
			g.removeLocked(oldest)
			victim = oldest
		} else {
			return nil, fmt.Errorf("%d connections are not logged in", len(g.waiting))
		}
	}
	g.waiting = append(g.waiting, s)
	if s.source.IsValid() {
		g.sources[s.source]++
	}
	return victim, nil
}

// dropLocked decides whether somebody has to go: never below EarlyDrop, always at Unauthenticated, with a rising chance
// from 30 % in between (sshd_config(5), MaxStartups).
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

// authenticated frees the slot: the connection is logged in.
func (s *slot) authenticated() {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	s.passed = true
	s.gate.removeLocked(s)
}

// failed notes a refused attempt to log in; release charges it.
func (s *slot) failed() {
	s.gate.mu.Lock()
	defer s.gate.mu.Unlock()
	s.failures++
}

// release frees the slot of a connection that has ended and charges its source if it never logged in.
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

// sourceOf is what counts as one source: an IPv4 address, or the /64 that one IPv6 customer has.
func sourceOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil { // only for an invalid address, which is no source
		return netip.Prefix{}
	}
	return p
}
