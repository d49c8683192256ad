package gateway

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Life is how long a sandbox is kept while nobody uses it.
type Life struct {
	TTL         time.Duration `json:"ttl,omitempty"`          // idle for so long it is stopped; 0 is never
	DeleteAfter time.Duration `json:"delete_after,omitempty"` // stopped for so long it is removed with its files; 0 is never
}

// Never is the NewSpec.TTL and NewSpec.DeleteAfter of a sandbox that has none whatever the daemon's
// default is.
const Never time.Duration = -1

// shortestLife is the least that may be asked for: idleness is looked at once a second.
const (
	shortestLife = time.Second
	idleEvery    = time.Second
	askIdle      = 3 * time.Second // how long the guest may take to say what runs
)

// clockSettles is how long a daemon waits, unless DeleteAfter is shorter, before it believes its
// clock as to how long something was stopped before it ran itself: a machine may boot with a wrong
// one, and files that were removed do not come back when it is set.
const clockSettles = time.Hour

// planLife is the life that spec asks for, with the daemon's defaults.
func (h *Hub) planLife(spec NewSpec, be sandbox.Backend) (Life, error) {
	l := Life{TTL: spec.TTL, DeleteAfter: spec.DeleteAfter}
	for name, d := range map[string]*time.Duration{"ttl": &l.TTL, "delete-after": &l.DeleteAfter} {
		if *d > 0 && *d < shortestLife {
			return l, wire.Errorf(wire.CodeUsage, "--%s %v: the shortest is %v", name, *d, shortestLife)
		}
	}
	if _, ok := be.(sandbox.Lifecycle); !ok {
		if spec.TTL > 0 || spec.DeleteAfter > 0 {
			e := wire.Errorf(wire.CodeUnavailable, "--ttl: not supported by this backend")
			e.Hint = "what it has is neither stopped nor removed by the daemon; leave --ttl and --delete-after out"
			return l, e
		}
		return Life{}, nil
	}
	if l.TTL == 0 {
		l.TTL = h.options.TTL
	}
	if l.DeleteAfter == 0 {
		l.DeleteAfter = h.options.DeleteAfter
	}
	l.TTL, l.DeleteAfter = max(l.TTL, 0), max(l.DeleteAfter, 0)
	return l, nil
}

// Touch notes that somebody uses b.
func (b *box) Touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.active = time.Now()
}

// working says which work keeps b from being idle, whoever looks on: a command in the foreground of
// a session, a call, a connection. A process that nobody waits for does not, nor does the image's
// own service.
func (b *box) working() string {
	if who := b.relays.any(); who != "" {
		return who + " is connected"
	}
	for _, l := range b.sessions.All() {
		if why := working(l); why != "" {
			return why
		}
	}
	return ""
}

// working says which work keeps a session's sandbox from being idle, if any.
func working(l *live.Session) string {
	if l.Final() {
		return ""
	}
	for _, m := range l.Members() {
		if m.Calls() > 0 {
			return m.Party().String() + " calls session " + l.Name()
		}
	}
	return foreground(l.Name(), l.State())
}

// entrypoint is the session of an image's own service.
const entrypoint = "entrypoint"

// foreground says what a session of that name does in that state, if it counts as use.
func foreground(name string, st wire.State) string {
	switch st.Phase {
	case wire.PhaseRunning, wire.PhaseWaiting, wire.PhaseOpaque:
	default:
		return ""
	}
	if name == entrypoint {
		return ""
	}
	what := "a command"
	if st.Foreground != nil && len(st.Foreground.Argv) > 0 {
		what = oneLine(strings.Join(st.Foreground.Argv, " "), 60)
	}
	return what + " runs in session " + name
}

// attachedTo says who is attached to a session of b, if anybody is. The party of the command table
// is attached while it calls.
func (b *box) attachedTo() string {
	for _, l := range b.sessions.All() {
		for _, m := range l.Members() {
			if !l.Final() && !m.Shared() {
				return m.Party().String() + " is attached to session " + l.Name()
			}
		}
	}
	return ""
}

// used says since when nobody has used b, and what does use it now, if anything.
func (b *box) used() (since time.Time, by string) {
	if by = b.working(); by == "" {
		by = b.attachedTo()
	}
	b.mu.Lock()
	since = b.active
	if b.facts.since.After(since) {
		since = b.facts.since
	}
	b.mu.Unlock()
	now := time.Now()
	if by != "" {
		return now, by
	}
	for _, l := range b.sessions.All() {
		if l.Name() == entrypoint {
			continue
		}
		if at := time.UnixMilli(l.State().SinceUnix); at.After(since) && !at.After(now) {
			since = at // the end of what ran between two looks
		}
	}
	return since, ""
}

// idleness stops what nobody has used for its TTL, removes what has been stopped for as long as it
// asked for, and ends what has come to its end.
func (h *Hub) idleness() {
	for _, b := range h.all() {
		f := b.get()
		switch {
		case f.overdue():
			b.once(b.finish)
		case f.state == Running && f.life.TTL > 0:
			since, by := b.used()
			if by != "" {
				b.Touch()
			} else if time.Since(since) >= f.life.TTL {
				b.once(b.expire)
			}
		case f.state == Stopped && f.life.DeleteAfter > 0 && !time.Now().Before(b.removedAt(f)):
			b.once(b.outlive)
		}
	}
}

// removedAt is when b, which is stopped, has been so for as long as it is to be kept.
func (b *box) removedAt(f facts) time.Time {
	at := f.since.Add(f.life.DeleteAfter)
	if settled := b.loaded.Add(min(f.life.DeleteAfter, clockSettles)); settled.After(at) {
		return settled
	}
	return at
}

// once runs f in the background unless the one from before does still.
func (b *box) once(f func(ctx context.Context)) {
	if !b.expiring.CompareAndSwap(false, true) {
		return
	}
	if !b.hub.tasks.start(func(ctx context.Context) {
		defer b.expiring.Store(false)
		f(ctx)
	}) {
		b.expiring.Store(false)
	}
}

// outlive removes b if it has been stopped for as long as it was to be kept, also by the time that
// this waited for its turn.
func (b *box) outlive(ctx context.Context) {
	_, err := b.removeIf(ctx, func(f facts) bool {
		over := f.state == Stopped && !time.Now().Before(b.removedAt(f))
		if over {
			b.hub.log.Info("removed: it was stopped for as long as it was to be kept", "id", b.id, "name", f.name, "after", f.life.DeleteAfter)
		}
		return over
	})
	if err != nil && ctx.Err() == nil {
		b.hub.log.Warn("removal waits", "id", b.id, "err", err)
	}
}

// expire stops b if it is idle, also by what its guest says now: what the daemon knows of a session
// may be old.
func (b *box) expire(ctx context.Context) {
	if !b.lockNow() {
		return // somebody acts on it
	}
	defer b.unlock()
	h := b.hub
	f := b.get()
	if b.isGone() || f.state != Running {
		return
	}
	within, cancel := context.WithTimeout(ctx, askIdle)
	defer cancel()
	c, err := h.pool.Control(within, f.inst)
	if err != nil {
		return // it is looked after already
	}
	infos, err := live.List(within, c)
	if err != nil {
		return
	}
	for _, info := range infos {
		if foreground(info.Name, info.State) != "" {
			b.Touch()
			return
		}
	}
	if since, by := b.used(); by != "" || time.Since(since) < f.life.TTL {
		return
	}
	why := fmt.Sprintf("idle: nobody used it for %v", f.life.TTL)
	h.journal.add(b.id, "idle", map[string]any{"ttl": f.life.TTL.String()})
	if err := b.halt(ctx, f, why); err != nil && ctx.Err() == nil {
		h.log.Warn("an idle sandbox is not stopped", "id", b.id, "name", f.name, "err", err)
		b.Touch()
	}
}

// fill says in i how long b is kept.
func (b *box) fillLife(i *Info, f facts) {
	i.TTLms, i.DeleteAfterMS = f.life.TTL.Milliseconds(), f.life.DeleteAfter.Milliseconds()
	if f.end != (End{}) {
		i.End = &f.end
	}
	switch {
	case f.state == Running && f.life.TTL > 0:
		since, by := b.used()
		if i.UsedBy = by; by == "" {
			at := since.Add(f.life.TTL)
			i.StopsAt = &at
		}
	case f.state == Stopped && f.life.DeleteAfter > 0:
		at := b.removedAt(f)
		i.RemovedAt = &at
	}
}
