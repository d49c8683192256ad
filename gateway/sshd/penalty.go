package sshd

import (
	"net/netip"
	"time"
)

// Penalties of a source for connections that did not log in (sshd_config(5), PerSourcePenalties,
// with its defaults).
const (
	fineFailed = 5 * time.Second  // failed attempt
	fineGrace  = 10 * time.Second // login timeout
	fineNoTry  = time.Second      // left without an attempt

	fineMin = 15 * time.Second // penalties below this have no effect
	fineMax = 10 * time.Minute // maximum penalty

	maxFined = 65536 // sources with a penalty
)

// fines is the penalty of a source, which decreases with time.
type fines struct {
	until  time.Time
	active bool // has reached fineMin
}

// refuses reports whether connections of the source are rejected at now.
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

// forgetLocked makes room: it deletes elapsed penalties, otherwise any.
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
