package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// What the policy refused, and who is told: each session's calls hear of what was refused while they lasted.

const (
	maxRefusals = 64          // that are remembered, each once
	maxSettle   = time.Second // longer than a stack needs unless the sandbox keeps it from reading
)

// refusal is a connection that the policy refused.
type refusal struct {
	wire.Denial
	number uint64    // of the newest of its kind, from 1
	at     time.Time // when that was
	told   time.Time // when the sessions heard of one of its kind
}

// refused remembers that a connection was refused, and tells the sessions that have something running.
func (b *box) refused(d wire.Denial) {
	n := &b.network
	n.mu.Lock()
	n.count++
	now := time.Now()
	r := refusal{Denial: d, number: n.count, at: now, told: now}
	fresh := true
	if at := slices.IndexFunc(n.refusals, func(r refusal) bool { return r.Denial == d }); at >= 0 {
		if told := n.refusals[at].told; r.told.Sub(told) <= time.Second { // a program that goes on trying wakes nobody up all the time
			fresh, r.told = false, told
		}
		n.refusals = slices.Delete(n.refusals, at, at+1)
	}
	n.refusals = append(n.refusals, r)
	if len(n.refusals) > maxRefusals {
		n.forgotten = n.refusals[0].number
		n.refusals = slices.Delete(n.refusals, 0, 1)
	}
	n.mu.Unlock()
	for _, l := range b.allLives() {
		l.refused(r, fresh)
	}
}

// since returns what was refused after the first count refusals, each once, and how many there are now.
func (n *network) since(count uint64) ([]wire.Denial, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []wire.Denial
	for _, r := range n.refusals {
		if r.number > count {
			all = append(all, r.Denial)
		}
	}
	return all, n.count
}

// maxRuns is how many runs a session remembers the beginning of: as many as a guest remembers by their op.
const maxRuns = 64

// maxLate is how long what the guest says of a session may come after a connection of what runs there.
const maxLate = time.Second

// denials is what a session knows of refused connections. They and the session's events reach the daemon by different
// ways, in any order: a connection may be refused before it is known here that its command has begun.
type denials struct {
	shown  string   // the newest since the present command began; empty if none was, or it was dealt with
	told   uint64   // how many times shown has become another one
	newest refusal  // whether or not anything was known to run; zero when it was dealt with
	calls  int      // calls under way that make something run
	runs   []begins // the newest runs that were asked for
	starts uint64   // how often the session has left its prompt
}

// begins is a run that was asked for when so many refusals had been.
type begins struct {
	op    string
	after uint64
}

// expect notes that a run is about to be asked for. A repeated one is the first one.
func (d *denials) expect(op string, after uint64) {
	if op == "" || len(op) > maxWord || slices.ContainsFunc(d.runs, func(b begins) bool { return b.op == op }) {
		return
	}
	if len(d.runs) == maxRuns {
		d.runs = slices.Delete(d.runs, 0, 1)
	}
	d.runs = append(d.runs, begins{op, after})
}

// begun notes that a command has begun, by its op if it was a run: what was refused before that is not its.
func (d *denials) begun(op string, now time.Time) {
	at := slices.IndexFunc(d.runs, func(b begins) bool { return op != "" && b.op == op })
	if at >= 0 && d.newest.number > d.runs[at].after || at < 0 && d.late(now) {
		d.shown = DenialText(d.newest.Denial)
		return
	}
	d.deal()
}

// late reports whether the newest refusal may be of what is known to run only now.
func (d *denials) late(now time.Time) bool {
	return d.newest.number > 0 && now.Sub(d.newest.at) <= maxLate
}

// deal forgets what was refused.
func (d *denials) deal() { d.shown, d.newest = "", refusal{} }

// refused tells the session that a connection was refused. One that is not fresh has been told already, unless to a
// command before.
func (l *Live) refused(r refusal, fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	d := &l.denials
	d.newest = r
	if d.calls == 0 && !l.busyLocked() || !fresh && d.shown != "" {
		return
	}
	d.shown = DenialText(r.Denial)
	d.told++
	l.noteNeedLocked()
	l.changeLocked()
}

// dealt tells the session that what was refused has been dealt with.
func (l *Live) dealt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.denials.deal()
	l.noteNeedLocked()
	l.changeLocked()
}

// hearing is what a call on a session is to be told of refused connections.
type hearing struct {
	after  uint64 // so many refusals of the sandbox had been before it
	starts uint64 // and the session had left its prompt so often
	runs   bool   // something of the session may connect
	drives bool   // by the call
}

// hearing begins the hearing of a call. Each ends by hush.
func (l *Live) hearing(verb wire.Verb, op string) hearing {
	_, count := l.box.network.since(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	drives := verb == wire.VerbRun || verb == wire.VerbType || verb == wire.VerbKeys
	if drives {
		l.denials.calls++
	}
	if verb == wire.VerbRun {
		l.denials.expect(op, count)
	}
	return hearing{count, l.denials.starts, drives || l.busyLocked(), drives}
}

// hush ends a hearing.
func (l *Live) hush(h hearing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.drives {
		l.denials.calls--
	}
}

// fillDenied says in r what was refused since h began, and whether that is not all.
func (l *Live) fillDenied(ctx context.Context, h hearing, r *wire.Result) {
	r.Denied = l.heard(ctx, h)
	n := &l.box.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(r.Denied) > 0 && n.forgotten > h.after {
		r.Notes = append(r.Notes, wire.NoteDenied)
	}
}

// heard returns what was refused since h began, if anything of the session ran meanwhile. A connection does not tell whose program made it: of
// several sessions that ran something each hears of it, and one that was at its prompt does not.
func (l *Live) heard(ctx context.Context, h hearing) []wire.Denial {
	l.box.network.settle(ctx)
	denied, _ := l.box.network.since(h.after)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(denied) == 0 || !h.runs && h.starts == l.denials.starts && !l.busyLocked() {
		return []wire.Denial{}
	}
	return denied
}

// busyLocked reports whether something is known to run in the session.
func (l *Live) busyLocked() bool {
	return l.state.Phase != wire.PhasePrompt && l.state.Phase != wire.PhaseDead
}

// DenialText is a refused connection in one line.
func DenialText(d wire.Denial) string {
	return fmt.Sprintf("%s: %s", DenialTarget(d), d.Why)
}

// DenialTarget is what could not be connected to, as host:port, or host for a name that was not looked up.
func DenialTarget(d wire.Denial) string {
	if d.Port == 0 {
		return d.Host
	}
	if addr, err := netip.ParseAddr(d.Host); err == nil {
		return netip.AddrPortFrom(addr, uint16(d.Port)).String()
	}
	return fmt.Sprintf("%s:%d", d.Host, d.Port)
}

// budget lets a burst of things through, and then so many a second. The zero value is full.
type budget struct {
	spent float64
	at    time.Time
}

func (g *budget) take(now time.Time) bool {
	g.spent = max(0, g.spent-now.Sub(g.at).Seconds()*eventRate)
	g.at = now
	if g.spent+1 > eventBurst {
		return false
	}
	g.spent++
	return true
}

// settle waits until all is known of what the sandbox has sent so far, for at most maxSettle.
func (n *network) settle(ctx context.Context) {
	n.mu.Lock()
	stack := n.stack
	n.mu.Unlock()
	if stack == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxSettle)
	defer cancel()
	stack.Settle(ctx)
}
