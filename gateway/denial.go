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
	told   time.Time // when the sessions heard of it
}

// refused remembers that a connection was refused, and tells the sessions that have something running.
func (b *box) refused(d wire.Denial) {
	n := &b.network
	n.mu.Lock()
	n.count++
	r := refusal{Denial: d, number: n.count, told: time.Now()}
	fresh := true
	if at := slices.IndexFunc(n.refusals, func(r refusal) bool { return r.Denial == d }); at >= 0 {
		if told := n.refusals[at].told; r.told.Sub(told) <= time.Second { // a program that goes on trying wakes nobody up all the time
			fresh, r.told = false, told
		}
		n.refusals = slices.Delete(n.refusals, at, at+1)
	}
	n.refusals = append(n.refusals, r)
	if len(n.refusals) > maxRefusals {
		n.refusals = slices.Delete(n.refusals, 0, 1)
	}
	n.mu.Unlock()
	if !fresh {
		return
	}
	for _, l := range b.allLives() {
		l.refused(DenialText(d))
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

// hearing is what a call on a session is to be told of refused connections.
type hearing struct {
	after uint64 // so many refusals of the sandbox had been before it
	runs  bool   // something of the session may connect
}

// hearing begins the hearing of a call with verb.
func (l *Live) hearing(verb wire.Verb) hearing {
	_, count := l.box.network.since(0)
	return hearing{count, verb == wire.VerbRun || verb == wire.VerbType || verb == wire.VerbKeys || l.busy()}
}

// heard returns what was refused since h began, if anything of the session ran meanwhile. A connection does not tell whose program made it: of
// several sessions that ran something each hears of it, and one that was at its prompt does not.
func (l *Live) heard(ctx context.Context, h hearing) []wire.Denial {
	l.box.network.settle(ctx)
	denied, _ := l.box.network.since(h.after)
	if len(denied) == 0 || !h.runs && !l.busy() {
		return []wire.Denial{}
	}
	return denied
}

// busy reports whether something runs in the session.
func (l *Live) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
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
