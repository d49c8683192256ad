package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A guest that is frozen keeps its connections and answers nobody: the kernel does that for it. So
// while calls wait for a guest, the daemon asks it for signs of life that only its own code gives.
// One that gives none for a while is silent: the calls under way are lost, or refused where nothing
// was sent.

// listening counts the calls that wait for the guest of a sandbox, and notes when it is silent. The
// zero value is ready.
type listening struct {
	mu     sync.Mutex
	calls  int                 // guarded by mu
	begun  chan struct{}       // guarded by mu; closed by the next call; nil while not needed
	silent *attach.FrozenError // guarded by mu; why calls end; nil while the guest answers
}

// enter counts a call that waits for the guest, until leave is called.
func (l *listening) enter() (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls++; l.begun != nil {
		close(l.begun)
		l.begun = nil
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls--
	}
}

// wait waits until a call waits for the guest, and reports whether ctx lives still.
func (l *listening) wait(ctx context.Context) bool {
	l.mu.Lock()
	if l.calls > 0 {
		l.mu.Unlock()
		return ctx.Err() == nil
	}
	if l.begun == nil {
		l.begun = make(chan struct{})
	}
	begun := l.begun
	l.mu.Unlock()
	select {
	case <-begun:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// set notes that the guest is silent, or with nil that it answers.
func (l *listening) set(silent *attach.FrozenError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = silent
}

// silence is what ends calls while the guest is silent; nil while it answers.
func (l *listening) silence() *attach.FrozenError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent
}

// A guest is silent when it gave no sign of life at so many looks in a row. Looks are counted, and
// not time: a daemon that did not run itself has asked nobody. A container's callers have an answer
// within 5 s if the engine or the kernel says that the guest is frozen: one that shares little
// processor with many may take longer than that to answer. A guest on a machine is an account's
// program behind a network.
const (
	lookEvery     = 500 * time.Millisecond
	silentLooks   = 8
	hostLookEvery = 5 * time.Second
	hostLooks     = 3

	// After so long a container's guest is taken for frozen although nobody says so.
	hungAfter = 30 * time.Second
	// After so long its control connection is taken for dead: another one may be answered.
	deadAfter = 2 * time.Minute
)

// looks says how often the guest of sb is looked at while calls wait for it, and at how many looks
// in a row it is silent.
func (g *Guest) looks() (every time.Duration, most int) {
	if g.IsHost() {
		return hostLookEvery, hostLooks
	}
	return lookEvery, silentLooks
}

// listen asks the guest on c for signs of life while calls wait for it, until c or ctx ends.
func (g *Guest) listen(ctx context.Context, c *connect.Control) {
	defer g.listening.set(nil)
	every, _ := g.looks()
	for g.listening.wait(ctx) && c.Err() == nil {
		answered := make(chan struct{})
		go func() { // ends with ctx
			defer close(answered)
			_ = c.Alive(ctx) // an error on a connection that lives was an answer, too
		}()
		if !g.await(ctx, c, answered) || !sleep(ctx, every) {
			return
		}
	}
}

// await waits for the guest's sign of life, and ends the calls each time that it is silent
// meanwhile. It reports whether the guest has answered.
func (g *Guest) await(ctx context.Context, c *connect.Control, answered <-chan struct{}) bool {
	every, most := g.looks()
	held := false // by this
	look := time.NewTicker(every)
	defer look.Stop()
	for missed := 0; ; {
		select {
		case <-answered:
			if ctx.Err() != nil || c.Err() != nil {
				return false
			}
			if held || g.IsPaused() {
				g.thawed(ctx)
			}
			return true
		case <-ctx.Done():
			return false
		case <-look.C:
		}
		if c.Held() && !held { // frozen by this daemon, which knows
			missed = 0
			continue
		}
		missed++
		silent := time.Duration(missed) * every
		if missed%most == 0 && g.frozen(ctx, silent) {
			g.loseFrozen(ctx, silent, held)
			held = true
		}
		if silent > deadAfter && !g.IsPaused() && !g.IsHost() {
			g.reg.pool.Forget(g.id)
			return false
		}
	}
}

// frozen reports whether the guest of sb, which has given no sign of life for so long, is frozen and
// not only busy.
func (g *Guest) frozen(ctx context.Context, d time.Duration) bool {
	if g.IsHost() || d >= hungAfter {
		return true
	}
	g.inspect(ctx, g.get().Instance, nil)
	g.mu.Lock()
	halted := g.halted
	g.mu.Unlock()
	return halted || g.State() == Paused
}

// loseFrozen ends the calls that wait for the guest of sb, which is frozen and has given no sign of
// life for so long. A pause has ended them already. At first the connections to it wait, for what
// runs may go on any moment; again says that they have.
func (g *Guest) loseFrozen(ctx context.Context, d time.Duration, again bool) {
	host := g.IsHost()
	if !host {
		g.hold(true)
		if g.IsPaused() {
			return
		}
	}
	silent := g.silentError(d)
	g.listening.set(silent)
	g.pauses.Interrupt(silent)
	if again && !host {
		g.inspect(ctx, g.get().Instance, g.Silent(d))
		g.relays.close() // relayed commands end with their connections, so these had more time
	}
}

// thawed notes that the guest of sb has answered after it was silent or paused.
func (g *Guest) thawed(ctx context.Context) {
	g.listening.set(nil)
	if g.inspect(ctx, g.get().Instance, nil) || g.IsPaused() {
		return
	}
	g.hold(false)
	g.answered(ctx)
}

// silentError ends the calls that wait for the guest of sb, which has not answered for so long.
func (g *Guest) silentError(d time.Duration) *attach.FrozenError {
	why := g.Silent(d)
	reach := g.Reach(why)
	refused, _ := errors.AsType[*wire.Error](reach)
	e := &attach.FrozenError{Refused: refused}
	if g.IsHost() {
		e.Lost = wire.LostError(wire.LostHost, text.Line(reach.Error(), 300))
		return e
	}
	e.Lost = wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: %v", g.Name(), why))
	return e
}
