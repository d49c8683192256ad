package sshd

import (
	"net/netip"
	"time"
)

// What a source is charged for a connection that did not log in, and what comes of it (sshd_config(5),
// PerSourcePenalties, with its defaults).
const (
	fineFailed = 5 * time.Second  // tried and failed
	fineGrace  = 10 * time.Second // was still there at the end of the grace
	fineNoTry  = time.Second      // left without trying

	fineMin = 15 * time.Second // below this much nothing happens yet
	fineMax = 10 * time.Minute // nobody is charged more

	maxFined = 65536 // sources that are remembered
)

// fines is what one source has been charged: it runs off with time.
type fines struct {
	until  time.Time
	active bool // has reached fineMin
}

// refuses reports whether the source may not connect at now.
func (f fines) refuses(now time.Time) bool { return f.active && now.Before(f.until) }

func (g *gate) chargeLocked(source netip.Prefix, now time.Time, fine time.Duration) {
	f := g.penalties[source]
	if f.until.Before(now) {
		f = fines{until: now}
	}
	f.until = f.until.Add(fine)
	if worst := now.Add(fineMax); f.until.After(worst) {
		f.until = worst
	}
	f.active = f.active || f.until.Sub(now) >= fineMin
	if _, known := g.penalties[source]; !known && len(g.penalties) >= maxFined {
		g.forgetLocked(now)
	}
	g.penalties[source] = f
}

// forgetLocked makes room: those that have run off, else any one.
func (g *gate) forgetLocked(now time.Time) {
	for source, f := range g.penalties {
		if f.until.Before(now) {
			delete(g.penalties, source)
		}
	}
	for source := range g.penalties {
		if len(g.penalties) < maxFined {
			return
		}
		delete(g.penalties, source)
	}
}
