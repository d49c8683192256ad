package live

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	MaxBlocked = 64 // blocked connections that are remembered, each kind once
	// Runs whose beginning a session remembers: as many as a guest remembers by their op.
	maxRuns = 64
	// What the guest reports of a session may come so long after a connection of what runs there.
	maxLate  = time.Second
	quietFor = time.Second // a program that goes on trying wakes nobody more often
)

// block is a connection that the sandbox's network policy blocked.
type block struct {
	wire.Denial
	number   uint64    // of the newest of its kind, from 1
	at       time.Time // when that was
	reported time.Time // when one of its kind was last reported to the sessions
}

// blocked are the newest blocks of a sandbox.
type blocked struct {
	mu        sync.Mutex
	all       []block // guarded by mu; oldest first, one of each kind
	forgotten uint64  // guarded by mu; number of the newest one that is no longer among them, or 0
	count     uint64  // guarded by mu; of all there ever were
}

// add returns d as it is remembered. fresh is false if its kind was reported to the sessions just
// now.
func (b *blocked) add(d wire.Denial, now time.Time) (added block, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	added, fresh = block{Denial: d, number: b.count, at: now, reported: now}, true
	if at := slices.IndexFunc(b.all, func(o block) bool { return o.Denial == d }); at >= 0 {
		if reported := b.all[at].reported; now.Sub(reported) <= quietFor {
			fresh, added.reported = false, reported
		}
		b.all = slices.Delete(b.all, at, at+1)
	}
	b.all = append(b.all, added)
	if len(b.all) > MaxBlocked {
		b.forgotten = b.all[0].number
		b.all = slices.Delete(b.all, 0, 1)
	}
	return added, fresh
}

// since returns what was blocked after the first after blocks, each once, and how many there are
// now. complete is false if some of those are no longer remembered.
func (b *blocked) since(after uint64) (all []wire.Denial, count uint64, complete bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.all {
		if o.number > after {
			all = append(all, o.Denial)
		}
	}
	return all, b.count, b.forgotten <= after
}

// Blocked remembers that a connection of the sandbox was blocked, and tells the sessions that have
// something running.
func (ss *Sessions) Blocked(d wire.Denial) {
	b, fresh := ss.blocked.add(d, time.Now())
	for _, s := range ss.All() {
		b.tell(s, fresh)
	}
}

// Denials returns the newest blocked connections, each once, and the number of all that there ever
// were.
func (ss *Sessions) Denials() (all []wire.Denial, count uint64) {
	all, count, _ = ss.blocked.since(0)
	return all, count
}

// BlockedSince returns a function that lists the connections that were blocked since BlockedSince
// was called, each once, and whether the list is complete. A connection does not say whose program
// made it: those of all programs are listed.
func (ss *Sessions) BlockedSince() func(context.Context) (all []wire.Denial, complete bool) {
	_, after, _ := ss.blocked.since(0)
	return func(ctx context.Context) ([]wire.Denial, bool) {
		ss.options.Settle(ctx)
		all, _, complete := ss.blocked.since(after)
		if all == nil {
			all = []wire.Denial{}
		}
		return all, complete
	}
}

// Unblocked tells the sessions that what was blocked has been dealt with.
func (ss *Sessions) Unblocked() {
	for _, s := range ss.All() {
		s.mu.Lock()
		s.denials.clear()
		s.observeLocked()
		s.changeLocked()
		s.mu.Unlock()
	}
}

// denials is what a session knows of blocked connections. They and the session's events reach the
// daemon by different ways, in any order: a connection may be blocked before it is known here that
// its command has begun.
type denials struct {
	// The newest since the present command began; empty if there is none, or it was dealt with.
	shown  string
	told   uint64 // how many times shown became another one
	newest block  // whether or not anything was known to run; zero when it was dealt with
	calls  int    // calls under way that make something run
	runs   []run  // the newest runs that were asked for
	starts uint64 // how often the session has left its prompt
}

// run is a run that was asked for after so many blocks.
type run struct {
	op    string
	after uint64
}

// expect notes that a run is about to be asked for. A repeated one is the first one.
func (d *denials) expect(op string, after uint64) {
	if op == "" || len(op) > MaxWord || slices.ContainsFunc(
		d.runs, func(r run) bool { return r.op == op }) {
		return
	}
	if len(d.runs) == maxRuns {
		d.runs = slices.Delete(d.runs, 0, 1)
	}
	d.runs = append(d.runs, run{op, after})
}

// begun notes that a command has begun, with its op if it was a run: what was blocked before that
// is not its own.
func (d *denials) begun(op string, now time.Time) {
	at := slices.IndexFunc(d.runs, func(r run) bool { return op != "" && r.op == op })
	if at >= 0 && d.newest.number > d.runs[at].after || at < 0 && d.late(now) {
		d.shown = DenialText(d.newest.Denial)
		return
	}
	d.clear()
}

// started notes that the session has left its prompt.
func (d *denials) started(now time.Time) {
	if d.starts++; d.late(now) {
		d.shown = DenialText(d.newest.Denial)
	}
}

// late reports whether the newest block may belong to what is known to run only now.
func (d *denials) late(now time.Time) bool {
	return d.newest.number > 0 && now.Sub(d.newest.at) <= maxLate
}

func (d *denials) clear() { d.shown, d.newest = "", block{} }

// tell tells a session that the connection was blocked. One that is not fresh was reported before,
// unless to an earlier command.
func (b block) tell(s *Session, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	d := &s.denials
	d.newest = b
	if d.calls == 0 && !busy(s.state) || !fresh && d.shown != "" {
		return
	}
	d.shown = DenialText(b.Denial)
	d.told++
	s.observeLocked()
	s.changeLocked()
}

// denied returns what was blocked since the call began, if anything of the session ran meanwhile,
// and whether that is all. A connection does not tell whose program made it: of several sessions
// that ran something each reports it, and one that was at its prompt does not.
func (c *Call) denied(ctx context.Context) (all []wire.Denial, complete bool) {
	s := c.session
	s.set.options.Settle(ctx)
	all, _, complete = s.set.blocked.since(c.after)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(all) == 0 || !c.runs && c.starts == s.denials.starts && !busy(s.state) {
		return []wire.Denial{}, true
	}
	return all, complete
}

// DenialText is a blocked connection in one line.
func DenialText(d wire.Denial) string {
	return fmt.Sprintf("%s: %s", DenialTarget(d), d.Why)
}

// DenialTarget is what could not be connected to, as host:port, or host for a name that was not
// looked up.
func DenialTarget(d wire.Denial) string {
	if d.Port == 0 {
		return d.Host
	}
	if addr, err := netip.ParseAddr(d.Host); err == nil {
		return netip.AddrPortFrom(addr, uint16(d.Port)).String()
	}
	return fmt.Sprintf("%s:%d", d.Host, d.Port)
}
