package lifecycle

import (
	"sync/atomic"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/egress"
)

// Counts are totals over all owners, and counters since the daemon started. They contain no names.
type Counts struct {
	Sandboxes map[State]int          // by state; pooled sandboxes are Warm
	Sessions  int                    // that are alive
	Partly    int                    // of these, not fully recorded
	Needs     map[attention.Kind]int // sessions that need attention, by kind
	Carried   int                    // sandboxes with a working network carrier

	Boots, BootsFailed   uint64 // including pooled sandboxes
	Claims, ClaimsFailed uint64 // of pooled sandboxes

	Connections    map[egress.Kind]uint64  // by outcome
	Limited        map[egress.Limit]uint64 // blocked by a limit, by that limit
	Open           int                     // now, including name lookups
	Sent, Received uint64                  // bytes of ended connections

	EventsDropped uint64 // because the store was too slow
	Hook          attention.HookCounts
}

// counters count events since the daemon started.
type counters struct {
	boots, bootsFailed, claims, claimsFailed atomic.Uint64
	opened, closed, refused, failed          atomic.Uint64 // connections
	ofSandbox, ofOwner, ofDaemon             atomic.Uint64 // blocked by a limit
	sent, received                           atomic.Uint64
	eventsDropped                            atomic.Uint64
}

func (c *counters) connection(e egress.Event) {
	switch e.Kind {
	case egress.KindRefused:
		c.refused.Add(1)
		if n := map[egress.Limit]*atomic.Uint64{egress.LimitSandbox: &c.ofSandbox,
			egress.LimitOwner: &c.ofOwner, egress.LimitDaemon: &c.ofDaemon}[e.Limit]; n != nil {
			n.Add(1)
		}
	case egress.KindFailed:
		c.failed.Add(1)
	case egress.KindClosed:
		c.closed.Add(1)
		c.sent.Add(uint64(max(0, e.Sent)))
		c.received.Add(uint64(max(0, e.Received)))
	default:
		c.opened.Add(1)
	}
}

// Counts returns the totals, without Hook. Only the admin may see them, because they reveal what
// others do.
func (reg *Registry) Counts() Counts {
	c := &reg.counts
	n := Counts{Sandboxes: make(map[State]int), Needs: make(map[attention.Kind]int),
		Boots: c.boots.Load(), BootsFailed: c.bootsFailed.Load(), Claims: c.claims.Load(),
		ClaimsFailed: c.claimsFailed.Load(),
		Connections: map[egress.Kind]uint64{egress.KindOpened: c.opened.Load(),
			egress.KindClosed:  c.closed.Load(),
			egress.KindRefused: c.refused.Load(), egress.KindFailed: c.failed.Load()},
		Limited: map[egress.Limit]uint64{egress.LimitSandbox: c.ofSandbox.Load(),
			egress.LimitOwner: c.ofOwner.Load(), egress.LimitDaemon: c.ofDaemon.Load()},
		Open: reg.accounts.connections.Used(), Sent: c.sent.Load(), Received: c.received.Load(),
		EventsDropped: c.eventsDropped.Load()}
	for _, s := range []State{Warm, Creating, Running, Paused, Stopped, Broken, Deleting, Lost} {
		n.Sandboxes[s] = 0
	}
	for _, need := range attention.Kinds() {
		n.Needs[need] = 0
	}
	for _, sb := range reg.All() {
		n.Sandboxes[sb.get().State]++
		if sb.network.Up() {
			n.Carried++
		}
		for _, l := range sb.sessions.All() {
			if l.Final() {
				continue
			}
			if !l.Ended() {
				n.Sessions++
			}
			if l.Recording() != "" {
				n.Partly++
			}
			if need := l.Brief().Needs; need != attention.None {
				n.Needs[need]++
			}
		}
	}
	return n
}
