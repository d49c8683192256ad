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

// Life is how long an unused sandbox is kept. In both fields 0 means indefinitely.
type Life struct {
	TTL time.Duration `json:"ttl,omitempty"` // unused for this long, it is stopped
	// Stopped for this long, it is removed with its files.
	DeleteAfter time.Duration `json:"delete_after,omitempty"`
}

// Never is the NewSpec.TTL and NewSpec.DeleteAfter of a sandbox that has none, whatever the
// daemon's default is.
const Never time.Duration = -1

// ShortestLife is the least NewSpec.TTL and NewSpec.DeleteAfter.
const ShortestLife = time.Second

const (
	idleEvery = time.Second
	askIdle   = 3 * time.Second // for the guest to list its sessions
)

// clockSettles is how long a daemon waits before it trusts its clock about the time before its own
// start, unless DeleteAfter is shorter. A machine may boot with a wrong clock, and removed files do
// not come back when the clock is set.
const clockSettles = time.Hour

// planLife returns the life that spec asks for, with the daemon's defaults.
func (o *Options) planLife(spec NewSpec, be sandbox.Backend) (Life, error) {
	l := Life{TTL: spec.TTL, DeleteAfter: spec.DeleteAfter}
	for name, d := range map[string]*time.Duration{"ttl": &l.TTL, "delete-after": &l.DeleteAfter} {
		if *d > 0 && *d < ShortestLife {
			return l, wire.Errorf(wire.CodeUsage, "--%s %v: must be at least %v", name, *d,
				ShortestLife)
		}
	}
	stopper, ok := be.(sandbox.Lifecycle)
	if !ok || !stopper.CanStop(sandbox.Spec{Volume: spec.Volume}) {
		if spec.TTL > 0 || spec.DeleteAfter > 0 {
			e := wire.Errorf(wire.CodeUnavailable, "--ttl: not supported by this backend")
			e.Hint = "leave --ttl and --delete-after out: the daemon neither stops nor removes " +
				"such sandboxes"
			if ok {
				e.Hint = "add --volume SIZE: without it, the files would not outlive a stop"
			}
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

// expiry knows when a sandbox was last used, and stops or removes it by age.
type expiry struct {
	sb     *Sandbox
	loaded time.Time   // when this daemon learned of it, with a monotonic clock
	under  atomic.Bool // a stop or removal by age is under way

	mu     sync.Mutex
	active time.Time // guarded by mu; when it was last seen in use
}

// touch records that the sandbox is in use.
func (e *expiry) touch() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active = time.Now()
}

// working returns the work that keeps sb from being idle: a connection, a call, a foreground
// command in a session. It is empty if there is none. Background processes and the image's own
// service do not count.
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

// working returns the work in a session that keeps its sandbox from being idle; empty if none.
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

// entrypoint is the session of the image's own service.
const entrypoint = "entrypoint"

// foreground returns what a session called name does in state st, if that counts as use.
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

// attachedTo returns who is attached to a session, and to which; empty if nobody. Shared
// attachments count only during a call.
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

// used returns since when the sandbox is unused, and what uses it now, if anything.
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
			since = at // a command ended between two checks
		}
	}
	return since, ""
}

// checkExpiry stops sandboxes unused for their TTL, removes those stopped for their DeleteAfter,
// and carries out scheduled ends.
func (reg *Registry) checkExpiry() {
	for _, sb := range reg.All() {
		f := sb.get()
		switch {
		case f.overdue():
			sb.expiry.once(sb.expiry.endScheduled)
		case f.State == Running && f.Life.TTL > 0:
			since, by := sb.expiry.used()
			if by != "" {
				sb.expiry.touch()
			} else if time.Since(since) >= f.Life.TTL {
				sb.expiry.once(sb.expiry.stopIdle)
			}
		case f.State == Stopped && f.Life.DeleteAfter > 0 &&
			!time.Now().Before(sb.expiry.removedAt(f)):
			sb.expiry.once(sb.expiry.removeStopped)
		}
	}
}

// removedAt returns when the sandbox, which is stopped, is due for removal.
func (e *expiry) removedAt(f Record) time.Time {
	at := f.Since.Add(f.Life.DeleteAfter)
	if settled := e.loaded.Add(min(f.Life.DeleteAfter, clockSettles)); settled.After(at) {
		return settled
	}
	return at
}

// once runs f in the background unless an earlier call is still running.
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

// removeStopped removes sb if its DeleteAfter has elapsed, also when its act begins.
func (e *expiry) removeStopped(ctx context.Context) {
	_, err := e.sb.reg.removals.removeIf(ctx, e.sb, func(f Record) bool {
		over := f.State == Stopped && !time.Now().Before(e.removedAt(f))
		if over {
			e.sb.reg.log.Info("sandbox removed: delete_after elapsed", "id", e.sb.id,
				"name", f.Name, "after", f.Life.DeleteAfter)
		}
		return over
	})
	if err != nil && ctx.Err() == nil {
		e.sb.reg.log.Warn("removal failed, will retry", "id", e.sb.id, "err", err)
	}
}

// stopIdle stops sb if it is idle. It asks the guest first, because the daemon's view of a session
// may be stale.
func (e *expiry) stopIdle(ctx context.Context) {
	if !e.sb.lockNow() {
		return // another act is under way
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
		return // the link handles it
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
	why := fmt.Sprintf("idle: unused for %v", f.Life.TTL)
	reg.journal.add(e.sb.id, "idle", map[string]any{"ttl": f.Life.TTL.String()})
	if err := e.sb.halt(ctx, f, why); err != nil && ctx.Err() == nil {
		reg.log.Warn("idle sandbox not stopped", "id", e.sb.id, "name", f.Name, "err", err)
		e.touch()
	}
}

// fillLife sets in i how long sb is kept.
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
