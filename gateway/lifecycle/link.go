package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	pausedPoll  = time.Second            // between checks of a paused sandbox
	redialPause = 500 * time.Millisecond // after an attempt that failed at once
	brokenAfter = 10 * time.Second       // without an answer, a running sandbox is broken
)

// link keeps the connection to one running sandbox: it dials the control connection again whenever
// that ends, and follows the sessions on it.
type link struct {
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu      sync.Mutex
	control *connect.Control // guarded by mu; nil while there is none
	// Runs a task that ends with control; nil without control.
	start func(func(context.Context)) // guarded by mu
}

// connect starts the link of sb, unless it is running.
func (g *Guest) connect() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.link != nil {
		select {
		case <-g.link.done:
		default:
			return
		}
	}
	ended, cancel := context.WithCancelCause(context.Background())
	lk := &link{cancel: cancel, done: make(chan struct{})}
	if g.sb.reg.tasks.start(func(ctx context.Context) {
		defer close(lk.done)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(ended, func() { cancel(context.Cause(ended)) })
		defer stop()
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel(nil)
		wg.Go(func() { g.sb.network.carry(ctx, g.sb.get().Instance) })
		lk.run(ctx, g)
	}) {
		g.link = lk
	}
}

// disconnect ends the link, the control connection and the sessions, before the sandbox is stopped,
// started or removed.
func (g *Guest) disconnect(cause error) {
	g.mu.Lock()
	lk := g.link
	g.link = nil
	g.mu.Unlock()
	if lk != nil {
		lk.cancel(cause)
	}
	g.sb.reg.pool.Forget(g.sb.id) // ends what the link waits for
	if lk != nil {
		<-lk.done
		g.sb.reg.pool.Forget(g.sb.id) // the link may have dialled again
	}
	g.endSessions(cause)
}

// endSessions finishes the records of all sessions of sb, whose terminals are gone.
func (g *Guest) endSessions(cause error) {
	g.sb.inside.forget()
	g.sb.sessions.End(cause)
}

func (lk *link) run(ctx context.Context, g *Guest) {
	var silent time.Time // since when the sandbox does not answer
	for ctx.Err() == nil {
		began := time.Now()
		inst := g.sb.get().Instance
		if g.sb.get().State == Paused { // it cannot answer; the engine may resume it
			if g.inspect(ctx, inst, nil) || !sleep(ctx, pausedPoll) {
				return
			}
			silent = time.Time{}
			continue
		}
		c, err := g.sb.reg.pool.Control(ctx, inst)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			silent = time.Time{}
			g.answered(ctx)
			lk.follow(ctx, g, c)
			if ctx.Err() != nil {
				return
			}
			if g.inspect(ctx, inst, nil) {
				return
			}
			continue
		}
		if silent.IsZero() {
			silent = began
		}
		cause := err
		if time.Since(silent) < brokenAfter && !isVerdict(err) {
			cause = nil
		}
		if g.inspect(ctx, inst, cause) {
			return
		}
		if !sleep(ctx, redialPause) {
			return
		}
	}
}

// isVerdict reports whether a dialling error is final: waiting does not help.
func isVerdict(err error) bool {
	for _, v := range []error{connect.ErrIdentity, connect.ErrLogin, connect.ErrNoGuest,
		connect.ErrVersion} {
		if errors.Is(err, v) {
			return true
		}
	}
	return false
}

// answered records that the sandbox answers.
func (g *Guest) answered(ctx context.Context) {
	if g.sb.lockNow() {
		defer g.sb.unlock()
		if f := g.sb.get(); f.State == Broken || f.State == Paused || f.State == Running &&
			f.Reason != "" {
			g.sb.observed(ctx, Running, "")
		}
	}
}

// inspect asks the engine for the state of a sandbox whose connection failed, and stores it. cause
// is why a running sandbox counts as broken; nil if it does not. over reports that the link can
// end.
func (g *Guest) inspect(ctx context.Context, inst sandbox.Instance, cause error) (over bool) {
	if !g.sb.lockNow() {
		return false // the act under way decides
	}
	defer g.sb.unlock()
	if f := g.sb.get(); f.State == Deleting || f.State == Creating || f.State == Stopped {
		return true
	}
	be, err := g.sb.reg.options.backend(inst.Backend)
	if err != nil {
		return true
	}
	var status sandbox.Status
	if i, ok := be.(sandbox.Finder); ok {
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		status, err = i.Inspect(within, inst)
		cancel()
	} else {
		// Other backends return these errors when they are dialled.
		status.Running = !errors.Is(cause, sandbox.ErrStopped) && !errors.Is(cause, sandbox.ErrGone)
		if errors.Is(cause, sandbox.ErrGone) {
			err = sandbox.ErrGone
		}
	}
	if ctx.Err() != nil {
		return false
	}
	if g.sb.get().State == Warm {
		return g.sb.reg.pooled.unfit(ctx, g.sb, status, err, cause)
	}
	g.mu.Lock()
	g.notes, g.halted = status.Notes, status.Halted
	g.mu.Unlock()
	switch {
	case errors.Is(err, sandbox.ErrGone):
		g.sb.setEndReason(wire.LostRemoved)
		g.sb.observed(ctx, Broken, "gone: removed outside the daemon")
	case err != nil:
		g.sb.observed(ctx, g.sb.get().State, "engine: "+firstLine(err))
		return false
	case status.Paused:
		g.sb.observed(ctx, Paused, "")
		return false
	case !status.Running:
		g.sb.setEndReason(endReasonOf(status))
		g.sb.observed(ctx, Stopped, why(status))
	case cause != nil:
		g.sb.observed(ctx, Broken, brokenWhy(cause))
		return false
	default:
		if g.sb.get().State == Paused {
			g.sb.observed(ctx, Running, "")
		}
		return false
	}
	g.sb.reg.pool.Forget(g.sb.id)
	g.endSessions(errors.New(g.sb.get().Reason))
	return true
}

// inspected returns the notes of the last inspection.
func (g *Guest) inspected() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.notes
}

// why returns why an instance does not run.
func why(s sandbox.Status) string {
	var words []string
	if s.OOMKilled {
		words = append(words, "oom_killed")
	}
	if s.EngineRestarted {
		words = append(words, "the engine was restarted and its processes are lost")
	}
	if s.ExitCode != 0 {
		words = append(words, fmt.Sprintf("its guest exited with %d", s.ExitCode))
	}
	if len(words) == 0 {
		words = append(words, "stopped by itself")
	}
	return strings.Join(words, ", ")
}

// brokenWhy returns the Reason for a sandbox that cannot be reached.
func brokenWhy(err error) string {
	switch {
	case errors.Is(err, connect.ErrIdentity):
		return "identity changed: " + firstLine(err)
	case errors.Is(err, connect.ErrLogin):
		return "login rejected"
	case errors.Is(err, connect.ErrNoGuest):
		return "no guest answers in it"
	case errors.Is(err, connect.ErrVersion):
		return "its guest uses another protocol version"
	}
	return "does not answer: " + firstLine(err)
}

// follow follows the sessions on a control connection until it ends.
func (lk *link) follow(ctx context.Context, g *Guest, c *connect.Control) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	lk.mu.Lock()
	lk.control = c
	lk.start = func(f func(context.Context)) { wg.Go(func() { f(ctx) }) }
	lk.mu.Unlock()
	defer func() {
		lk.mu.Lock()
		lk.control, lk.start = nil, nil
		lk.mu.Unlock()
		cancel(nil)
	}()
	wg.Go(func() { newPoller(g, c).run(ctx) })
	for pause := redialPause; ; pause = min(2*pause, 10*time.Second) {
		err := lk.refresh(ctx, g, c)
		if err == nil {
			break
		}
		if c.Err() == nil {
			g.sb.reg.log.Warn("sessions cannot be listed", "id", g.sb.id, "err", err)
		}
		select {
		case <-c.Done():
			return
		default:
		}
		if !sleep(ctx, pause) {
			return
		}
	}
	select {
	case <-c.Done():
	case <-ctx.Done():
	}
}

// refresh follows the sessions that the guest has, and ends those that it no longer has.
func (lk *link) refresh(ctx context.Context, g *Guest, c *connect.Control) error {
	known := g.sb.sessions.All() // a session that begins from now on may be missing in the list
	infos, err := live.List(ctx, c)
	if err != nil {
		return err
	}
	g.sb.reg.at("listed")
	have := make(map[string]bool)
	for _, info := range infos {
		have[info.Name] = true
		if _, err := lk.take(g, c, info); err != nil {
			g.sb.reg.log.Warn("session cannot be followed", "id", g.sb.id,
				"session", oneLine(info.Name, 64), "err", err)
		}
	}
	for _, l := range known {
		if !have[l.Name()] {
			g.sb.sessions.Drop(l, "lost: the guest no longer has it")
		}
	}
	for _, l := range g.sb.sessions.All() {
		for _, m := range l.Members() {
			lk.begin(func(ctx context.Context) { m.Resume(ctx, c) })
		}
	}
	return nil
}

// begin runs f until the control connection ends; it does nothing without one.
func (lk *link) begin(f func(ctx context.Context)) {
	lk.mu.Lock()
	defer lk.mu.Unlock()
	if lk.start != nil {
		lk.start(f)
	}
}

// take returns the replica of a session that the guest has, followed on c.
func (lk *link) take(g *Guest, c *connect.Control, info wire.SessionInfo) (*live.Session, error) {
	if _, err := wire.ParseLabel("session name", info.Name); err != nil {
		return nil, fmt.Errorf("sandbox %s lists a session: %w", g.sb.id, err)
	}
	l, err := g.sb.sessions.Adopt(info)
	if err != nil {
		return nil, err
	}
	// Without a control connection nothing runs yet: the link lists the sessions when it has one.
	lk.begin(func(ctx context.Context) { l.Follow(ctx, c) })
	return l, nil
}
