package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
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

// ShortestLife is the least NewSpec.TTL and NewSpec.DeleteAfter.
const ShortestLife = time.Second

const (
	idleEvery = time.Second
	askIdle   = 3 * time.Second // how long the guest may take to say what runs
)

// clockSettles is how long a daemon waits, unless DeleteAfter is shorter, before it believes its
// clock as to how long something was stopped before it ran itself: a machine may boot with a wrong
// one, and files that were removed do not come back when it is set.
const clockSettles = time.Hour

// planLife is the life that spec asks for, with the daemon's defaults.
func (o *Options) planLife(spec NewSpec, be sandbox.Backend) (Life, error) {
	l := Life{TTL: spec.TTL, DeleteAfter: spec.DeleteAfter}
	for name, d := range map[string]*time.Duration{"ttl": &l.TTL, "delete-after": &l.DeleteAfter} {
		if *d > 0 && *d < ShortestLife {
			return l, wire.Errorf(wire.CodeUsage, "--%s %v: the shortest is %v", name, *d, ShortestLife)
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
		l.TTL = o.TTL
	}
	if l.DeleteAfter == 0 {
		l.DeleteAfter = o.DeleteAfter
	}
	l.TTL, l.DeleteAfter = max(l.TTL, 0), max(l.DeleteAfter, 0)
	return l, nil
}

// expiry is when a sandbox was used last, and what becomes of it by age.
type expiry struct {
	sb     *Sandbox
	loaded time.Time   // since when this daemon knows it, by a clock that nobody sets
	under  atomic.Bool // its end by age is under way

	mu     sync.Mutex
	active time.Time // guarded by mu; when it was seen to be used last
}

// touch notes that the sandbox is used.
func (e *expiry) touch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active = time.Now()
}

// working says which work keeps sb from being idle, whoever looks on: a command in the foreground of
// a session, a call, a connection. A process that nobody waits for does not, nor does the image's
// own service.
func (e *expiry) working() string {
	if who := e.sb.guest.relays.any(); who != "" {
		return who + " is connected"
	}
	for _, l := range e.sb.sessions.All() {
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

// attachedTo says who is attached to a session of the sandbox, if anybody is. The party of the command table
// is attached while it calls.
func (e *expiry) attachedTo() string {
	for _, l := range e.sb.sessions.All() {
		for _, m := range l.Members() {
			if !l.Final() && !m.Shared() {
				return m.Party().String() + " is attached to session " + l.Name()
			}
		}
	}
	return ""
}

// used says since when nobody has used the sandbox, and what does use it now, if anything.
func (e *expiry) used() (since time.Time, by string) {
	if by = e.working(); by == "" {
		by = e.attachedTo()
	}
	e.mu.Lock()
	since = e.active
	e.mu.Unlock()
	if state := e.sb.get().Since; state.After(since) {
		since = state
	}
	now := time.Now()
	if by != "" {
		return now, by
	}
	for _, l := range e.sb.sessions.All() {
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
func (reg *Registry) idleness() {
	for _, sb := range reg.All() {
		f := sb.get()
		switch {
		case f.overdue():
			sb.expiry.once(sb.expiry.finish)
		case f.State == Running && f.Life.TTL > 0:
			since, by := sb.expiry.used()
			if by != "" {
				sb.expiry.touch()
			} else if time.Since(since) >= f.Life.TTL {
				sb.expiry.once(sb.expiry.expire)
			}
		case f.State == Stopped && f.Life.DeleteAfter > 0 && !time.Now().Before(sb.expiry.removedAt(f)):
			sb.expiry.once(sb.expiry.outlive)
		}
	}
}

// removedAt is when the sandbox, which is stopped, has been so for as long as it is to be kept.
func (e *expiry) removedAt(f Record) time.Time {
	at := f.Since.Add(f.Life.DeleteAfter)
	if settled := e.loaded.Add(min(f.Life.DeleteAfter, clockSettles)); settled.After(at) {
		return settled
	}
	return at
}

// once runs f in the background unless the one from before does still.
func (e *expiry) once(f func(ctx context.Context)) {
	if !e.under.CompareAndSwap(false, true) {
		return
	}
	if !e.sb.reg.tasks.start(func(ctx context.Context) {
		defer e.under.Store(false)
		f(ctx)
	}) {
		e.under.Store(false)
	}
}

// outlive removes sb if it has been stopped for as long as it was to be kept, also by the time that
// this waited for its turn.
func (e *expiry) outlive(ctx context.Context) {
	_, err := e.sb.reg.removals.removeIf(ctx, e.sb, func(f Record) bool {
		over := f.State == Stopped && !time.Now().Before(e.removedAt(f))
		if over {
			e.sb.reg.log.Info("removed: it was stopped for as long as it was to be kept", "id", e.sb.id, "name", f.Name, "after", f.Life.DeleteAfter)
		}
		return over
	})
	if err != nil && ctx.Err() == nil {
		e.sb.reg.log.Warn("removal waits", "id", e.sb.id, "err", err)
	}
}

// expire stops sb if it is idle, also by what its guest says now: what the daemon knows of a session
// may be old.
func (e *expiry) expire(ctx context.Context) {
	if !e.sb.lockNow() {
		return // somebody acts on it
	}
	defer e.sb.unlock()
	reg := e.sb.reg
	f := e.sb.get()
	if e.sb.isGone() || f.State != Running {
		return
	}
	within, cancel := context.WithTimeout(ctx, askIdle)
	defer cancel()
	c, err := reg.pool.Control(within, f.Instance)
	if err != nil {
		return // it is looked after already
	}
	infos, err := live.List(within, c)
	if err != nil {
		return
	}
	for _, info := range infos {
		if foreground(info.Name, info.State) != "" {
			e.touch()
			return
		}
	}
	if since, by := e.used(); by != "" || time.Since(since) < f.Life.TTL {
		return
	}
	why := fmt.Sprintf("idle: nobody used it for %v", f.Life.TTL)
	reg.journal.add(e.sb.id, "idle", map[string]any{"ttl": f.Life.TTL.String()})
	if err := e.sb.halt(ctx, f, why); err != nil && ctx.Err() == nil {
		reg.log.Warn("an idle sandbox is not stopped", "id", e.sb.id, "name", f.Name, "err", err)
		e.touch()
	}
}

// fill says in i how long sb is kept.
func (e *expiry) fillLife(i *Info, f Record) {
	i.TTLms, i.DeleteAfterMS = f.Life.TTL.Milliseconds(), f.Life.DeleteAfter.Milliseconds()
	if f.End != (End{}) {
		i.End = &f.End
	}
	switch {
	case f.State == Running && f.Life.TTL > 0:
		since, by := e.used()
		if i.UsedBy = by; by == "" {
			at := since.Add(f.Life.TTL)
			i.StopsAt = &at
		}
	case f.State == Stopped && f.Life.DeleteAfter > 0:
		at := e.removedAt(f)
		i.RemovedAt = &at
	}
}
