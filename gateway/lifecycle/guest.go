package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Guest is the daemon's side of a sandbox's guest: the control connection, the sessions on it, the
// calls under way. It implements attach.Sandbox.
type Guest struct {
	sb     *Sandbox
	relays relays
	// Ends the calls under way, including those that wait for a silent guest.
	pauses    interrupt.Event
	stops     interrupt.Event // ends the calls not sent yet; used with op held
	listening listening       // asks for signs of life while calls wait

	mu     sync.Mutex
	link   *link    // guarded by mu; nil while the daemon keeps no connection
	notes  []string // guarded by mu; of the last inspection
	halted bool     // guarded by mu; stopped by a signal at the last inspection
}

// Name returns the sandbox's name.
func (g *Guest) Name() string { return g.sb.Name() }

// Sessions returns the sessions that the daemon follows.
func (g *Guest) Sessions() *live.Sessions { return g.sb.sessions }

// IsHost reports whether the sandbox is an existing machine.
func (g *Guest) IsHost() bool { return g.sb.IsHost() }

// IsPaused reports whether the sandbox is paused.
func (g *Guest) IsPaused() bool { return g.sb.IsPaused() }

// Reach converts an error of reaching the sandbox for the client, as Sandbox.Reach does.
func (g *Guest) Reach(err error) error { return g.sb.Reach(err) }

// Touch records that the sandbox is in use.
func (g *Guest) Touch() { g.sb.expiry.touch() }

// MayBegin reserves a session for the owner. The error has code limit_quota. The caller calls done
// when the session exists or has failed.
func (g *Guest) MayBegin() (done func(), err error) {
	return g.sb.reg.accounts.mayBegin(g.sb.Owner())
}

// Stops returns what ends the calls that were not sent yet when sb is stopped.
func (g *Guest) Stops() *interrupt.Event { return &g.stops }

// StopsAfter returns how long after the last party has left sb stops. 0 means that it does not, or
// that something runs in it.
func (g *Guest) StopsAfter() time.Duration {
	if g.sb.expiry.working() != "" {
		return 0
	}
	return g.sb.get().Life.TTL
}

// MayStay implements attach.Sandbox.
func (g *Guest) MayStay(party wire.Party) error {
	if rights, _ := g.sb.RightsOf(party.Name); rights != wire.RightDrive && rights != party.Rights {
		return g.sb.reg.NotFound(g.sb.Name())
	}
	return nil
}

// NotRunning returns the error for a party that may not start sb, which is not running.
func (g *Guest) NotRunning(session string) error {
	if f := g.sb.get(); f.State == Paused {
		return &wire.Error{Code: wire.CodeUnavailable, Message: "sandbox " + f.Name + " is paused",
			Hint: "its owner can resume it: sandboxd resume " + f.Name}
	}
	e := noSession(g.sb.Name(), session)
	if f := g.sb.get(); f.State == Stopped {
		e.Message += ", which is stopped"
		e.Hint = "start it: sandboxd start " + f.Name
	}
	return e
}

// Wake resumes a paused sandbox for the principal by before something is done in it, unless it is
// held. After an error, nothing may be.
func (g *Guest) Wake(ctx context.Context, by string) error {
	if err := g.Silence(); err != nil && !g.IsHost() {
		return err
	}
	f := g.sb.get()
	if f.State != Paused {
		return nil
	}
	if err := f.mayResume(); err != nil {
		return err
	}
	ctx, done := g.sb.reg.tasks.bound(ctx)
	defer done()
	_, err := g.sb.start(ctx, by, nil)
	return err
}

// control returns the control connection, and starts a stopped sandbox for by first.
func (g *Guest) control(ctx context.Context, by string,
	progress func(string)) (*connect.Control, error) {
	return dialRunning(ctx, g, by, progress, g.sb.reg.pool.Control)
}

// Control is control for a party on a session. A stopped sandbox is started only for a party that
// may drive and would also start the session. A paused one is resumed for every party that may
// drive.
func (g *Guest) Control(ctx context.Context, party wire.Party, session string, starts bool,
	progress func(string)) (*connect.Control, error) {
	if err := g.Silence(); err != nil {
		return nil, err
	}
	if party.Rights != wire.RightWatch && (starts || g.sb.get().State == Paused) {
		return g.control(ctx, party.Name, progress)
	}
	f := g.sb.get()
	if f.State != Running {
		return nil, g.NotRunning(session)
	}
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	c, err := g.sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return nil, g.Reach(err)
	}
	return c, nil
}

// Again returns the control connection after one broke, without starting the sandbox. A permanent
// loss is a *wire.Error with code lost.
func (g *Guest) Again(ctx context.Context) (*connect.Control, error) {
	if lost := g.Over(); lost != nil {
		return nil, lost
	}
	inst := g.sb.get().Instance
	within, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	c, err := g.sb.reg.pool.Control(within, inst)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	g.inspect(ctx, inst, err)
	if lost := g.Over(); lost != nil {
		return nil, lost
	}
	if errors.Is(err, sandbox.ErrEngine) {
		return nil, wire.LostError(wire.LostEngine, "the container engine does not answer")
	}
	return nil, g.Reach(err)
}

// Answers waits until sb answers after a connection to it broke. Its error says why the calls on
// that connection are lost.
func (g *Guest) Answers(ctx context.Context) *wire.Error {
	ctx, cancel := context.WithTimeout(ctx, g.Patience())
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		c, err := g.Again(ctx)
		if err == nil { // this connection may be broken as well
			_, err = c.Do(ctx, wire.Control{Do: "health"})
		}
		switch lost := (*wire.Error)(nil); {
		case err == nil:
			return nil
		case errors.As(err, &lost) && lost.Code == wire.CodeLost && lost.Reason != "":
			return lost
		case !sleep(ctx, pause):
			return g.Unreachable(err)
		}
	}
}

// Patience returns how long sb may take to answer after a connection broke. A host gets longer: its
// network may fail for a while, and its guest remembers a party for that time.
func (g *Guest) Patience() time.Duration {
	if g.sb.get().Instance.Host.URI != "" {
		return rememberedFor
	}
	return answersWithin
}

// Over returns why the calls in sb are lost: it has ended, is about to, is paused, or its guest is
// silent. It returns nil while sb runs as far as known.
func (g *Guest) Over() *wire.Error {
	silent := g.listening.silence()
	f, endReason, gone := g.sb.ended()
	switch {
	case gone, f.State == Deleting:
		return wire.LostError(wire.LostRemoved, fmt.Sprintf("sandbox %s was removed", f.Name))
	case f.State == Paused:
		return pausedError(f.Name).Lost
	case endReason != "":
		return wire.LostError(endReason, fmt.Sprintf("sandbox %s has ended: %s", f.Name,
			endReasonText[endReason]))
	case f.State != Running && f.State != Broken:
		return wire.LostError(wire.LostStopped, fmt.Sprintf("sandbox %s is %s", f.Name, f.State))
	case silent != nil:
		return silent.Lost
	}
	return nil
}

// Unreachable returns why the calls in sb are lost, when it does not answer.
func (g *Guest) Unreachable(err error) *wire.Error {
	if lost := g.Over(); lost != nil {
		return lost
	}
	f := g.sb.get()
	if f.Instance.Host.URI != "" {
		return wire.LostError(wire.LostHost,
			fmt.Sprintf("sandbox %s: the connection to its host broke", f.Name))
	}
	g.sb.reg.log.Debug("call lost", "sandbox", g.sb.id, "err", err)
	return wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: its guest no longer answers",
		f.Name))
}

// Lost returns why a command on a connection of its own ended without an exit status, as an error
// with code lost. It may wait a moment until the reason is known.
func (g *Guest) Lost(ctx context.Context) error {
	if lost := g.Answers(ctx); lost != nil {
		return lost
	}
	return wire.LostError(wire.LostGuest,
		fmt.Sprintf("sandbox %s: the connection to its guest broke", g.sb.Name()))
}

// Within implements attach.Sandbox.
func (g *Guest) Within(ctx context.Context) (_ context.Context, over func()) {
	leave := g.listening.enter()
	ctx, done := g.pauses.Within(ctx)
	return ctx, func() { done(); leave() }
}

// Silence implements attach.Sandbox.
func (g *Guest) Silence() error {
	if silent := g.listening.silence(); silent != nil {
		return silent.Refused
	}
	return nil
}

// Silent returns the error for a guest that has not answered for d.
func (g *Guest) Silent(d time.Duration) error {
	what := "the guest"
	if uri := g.sb.get().Instance.Host.URI; uri != "" {
		what += " on " + uri
	}
	return &interrupt.SilentError{What: what, Time: d}
}

// Session returns the replica of a session that the guest has. It asks the guest if fresh is true
// or the session is not known.
func (g *Guest) Session(ctx context.Context, c *connect.Control, name string,
	fresh bool) (*live.Session, error) {
	if l := g.sb.sessions.Get(name); l != nil && !fresh && !l.Final() {
		return l, nil
	}
	g.mu.Lock()
	lk := g.link
	g.mu.Unlock()
	if lk == nil {
		return nil, g.Reach(sandbox.ErrStopped)
	}
	infos, err := live.List(ctx, c)
	if err != nil {
		return nil, g.Reach(err)
	}
	for _, info := range infos {
		if info.Name == name {
			return lk.take(g, c, info)
		}
	}
	return nil, wire.Errorf(wire.CodeNotFound, "no session %s in sandbox %s", name, g.sb.Name())
}

// ListSessions asks the guest of a running sandbox for its sessions, and adds the parties attached
// through the daemon. A paused sandbox returns the last known ones, others none. It starts nothing.
func (g *Guest) ListSessions(ctx context.Context) ([]wire.SessionInfo, error) {
	ctx, done := g.sb.reg.tasks.bound(ctx)
	defer done()
	f := g.sb.get()
	switch f.State {
	case Running:
	case Paused: // the guest cannot answer
		return g.sb.Info().Sessions, nil
	default:
		return []wire.SessionInfo{}, nil
	}
	ctx, over := g.Within(ctx)
	defer over()
	c, err := g.sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return nil, g.Reach(err)
	}
	infos, err := live.List(ctx, c)
	if err != nil {
		return nil, g.Reach(err)
	}
	g.mu.Lock()
	lk := g.link
	g.mu.Unlock()
	for i := range infos {
		infos[i].Parties = []wire.Party{}
		if lk == nil {
			continue
		}
		if l, err := lk.take(g, c, infos[i]); err == nil {
			infos[i].Parties = l.Parties()
		}
	}
	slices.SortFunc(infos, func(a, b wire.SessionInfo) int {
		return strings.Compare(a.Name, b.Name)
	})
	return infos, nil
}

// CloseSession ends a session and its processes. Its record stays.
func (g *Guest) CloseSession(ctx context.Context, session string) error {
	ctx, done := g.sb.reg.tasks.bound(ctx)
	defer done()
	f := g.sb.get()
	if f.State != Running {
		return g.NotRunning(session)
	}
	ctx, over := g.Within(ctx)
	defer over()
	c, err := g.sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return g.Reach(err)
	}
	_, err = live.Ask(ctx, c, wire.Request{Verb: wire.VerbClose, Session: session})
	if errors.As(err, new(*wire.Error)) {
		return err
	}
	return g.Reach(err)
}

// Live returns the replica of a session for reading, without attaching a party. It starts nothing:
// the sessions of a sandbox that is not running exist as records only.
func (g *Guest) Live(ctx context.Context, session string) (*live.Session, error) {
	if l := g.sb.sessions.Get(session); l != nil {
		return l, nil
	}
	ctx, done := g.sb.reg.tasks.bound(ctx)
	defer done()
	f := g.sb.get()
	if f.State != Running {
		return nil, g.NotRunning(session)
	}
	ctx, over := g.Within(ctx)
	defer over()
	c, err := g.sb.reg.pool.Control(ctx, f.Instance)
	if err != nil {
		return nil, g.Reach(err)
	}
	return g.Session(ctx, c, session, false)
}

// Upstream opens an SSH connection to a sandbox for a relayed client of a principal that may drive;
// the client closes it. It starts a stopped sandbox first. Errors wrap ErrUnknown, ErrBroken,
// ErrEngine or ErrIdentity.
func (g *Guest) Upstream(ctx context.Context, principal string,
	progress func(line string)) (*connect.Conn, error) {
	reg := g.sb.reg
	ctx, done := reg.tasks.bound(ctx)
	defer done()
	if err := g.Silence(); err != nil && !g.IsHost() {
		return nil, err
	}
	c, err := dialRunning(ctx, g, principal, progress, reg.pool.SSH)
	if err == nil {
		leave := g.listening.enter()
		g.relays.add(c, principal, func() { g.sb.expiry.touch(); leave() })
	}
	if err == nil {
		// The share ended meanwhile.
		if rights, _ := g.sb.RightsOf(principal); rights != wire.RightDrive {
			c.Close()
			return nil, reg.NotFound(g.sb.Name())
		}
	}
	return c, err
}

// tryAgain logs in to a host now, even if an earlier login was rejected.
func (g *Guest) tryAgain(ctx context.Context, inst sandbox.Instance) (sandbox.Instance, error) {
	g.sb.reg.pool.Forget(g.sb.id)
	patience := reachWithin
	if sandbox.AskOf(ctx) != nil {
		patience += askWithin
	}
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := g.sb.reg.pool.Control(within, inst); err != nil {
		return sandbox.Instance{}, g.Reach(err)
	}
	err := g.sb.transition(ctx, func(f *Record) { f.State, f.Reason = Running, "" })
	if err != nil {
		return sandbox.Instance{}, err
	}
	g.connect()
	return inst, nil
}

// against returns err if it counts against the sandbox. It returns nil if one dial failed while the
// control connection lives: that says nothing of the sandbox.
func (g *Guest) against(err error) error {
	if isVerdict(err) || errors.Is(err, sandbox.ErrStopped) || errors.Is(err, sandbox.ErrGone) ||
		!g.inTouch() {
		return err
	}
	return nil
}

// dialRunning dials the guest for by. It starts, once, a sandbox that stopped unnoticed. It dials
// again, once, if the daemon itself closed the connections meanwhile. If the owner stops the
// sandbox meanwhile, the call fails; only a later call starts it again.
func dialRunning[C any](ctx context.Context, g *Guest, by string, progress func(string),
	dial func(context.Context, sandbox.Instance) (C, error)) (C, error) {
	var none C
	ctx, done := g.stops.Within(ctx)
	defer done()
	for again := true; ; again = false {
		inst, err := g.sb.ensureRunning(ctx, by, progress)
		if err != nil {
			return none, err
		}
		unfrozen, over := g.Within(ctx)
		within, cancel := context.WithTimeout(unfrozen, reachWithin)
		c, err := dial(within, inst)
		cancel()
		frozen := interrupt.FrozenOr(unfrozen, err)
		over()
		if err == nil {
			// Without its control connection it stays so, whatever else answers.
			if g.sb.State() == Broken && g.inTouch() {
				g.answered(ctx)
			}
			return c, nil
		}
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		if errors.As(frozen, new(*interrupt.FrozenError)) { // nobody gets an answer
			return none, frozen
		}
		if errors.Is(err, connect.ErrClosed) { // closed by the daemon: no fault of the sandbox
			if again {
				continue
			}
			return none, g.Reach(err)
		}
		if g.inspect(ctx, inst, g.against(err)); again && g.sb.get().State == Stopped {
			continue
		}
		return none, g.Reach(err)
	}
}
