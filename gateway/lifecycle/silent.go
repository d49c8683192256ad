package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The kernel keeps the connections of a frozen guest open. While calls wait for a guest, the daemon
// therefore asks it for signs of life. Without one for a while, the guest is silent: calls under
// way are lost, and calls that were not sent yet are rejected.

// listening counts the calls that wait for the guest of a sandbox, and knows whether it is silent.
// The zero value is ready.
type listening struct {
	mu     sync.Mutex
	calls  int                    // guarded by mu
	begun  chan struct{}          // guarded by mu; closed by the next call; nil if unused
	silent *interrupt.FrozenError // guarded by mu; why calls end; nil while the guest answers
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

// wait blocks until a call waits for the guest, and reports whether ctx is still alive.
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

// set records that the guest is silent; nil means that it answers.
func (l *listening) set(silent *interrupt.FrozenError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = silent
}

// silence returns why calls end while the guest is silent; nil while it answers.
func (l *listening) silence() *interrupt.FrozenError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent
}

// A guest is silent after this many polls in a row without an answer. Polls are counted instead of
// time, because a daemon that did not run itself has not asked. Calls to a container end within 5 s
// if the engine or the kernel confirms that the guest is frozen; a guest with little CPU time may
// be slower than that. A host's guest is behind a network, so it gets longer.
const (
	pollEvery     = 500 * time.Millisecond
	silentPolls   = 8
	hostPollEvery = 5 * time.Second
	hostPolls     = 3

	// A container's guest counts as frozen after this time, even unconfirmed.
	hungAfter = 30 * time.Second
	// Its control connection is closed after this time: a new one may be answered.
	deadAfter = 2 * time.Minute
)

// poller asks the guest of one sandbox for signs of life on one control connection.
type poller struct {
	g     *Guest
	c     *connect.Control
	every time.Duration // between polls
	most  int           // polls in a row without an answer until the guest is silent
}

func newPoller(g *Guest, c *connect.Control) *poller {
	p := &poller{g: g, c: c, every: pollEvery, most: silentPolls}
	if g.IsHost() {
		p.every, p.most = hostPollEvery, hostPolls
	}
	return p
}

// run polls the guest while calls wait for it, until the connection or ctx ends.
func (p *poller) run(ctx context.Context) {
	defer p.g.listening.set(nil)
	for p.g.listening.wait(ctx) && p.c.Err() == nil {
		answered := make(chan struct{})
		go func() { // ends with ctx
			defer close(answered)
			_ = p.c.Alive(ctx) // an error on a live connection is an answer, too
		}()
		if !p.await(ctx, answered) || !sleep(ctx, p.every) {
			return
		}
	}
}

// await waits for the guest's sign of life, and ends the calls each time the guest becomes silent.
// It reports whether the guest has answered.
func (p *poller) await(ctx context.Context, answered <-chan struct{}) bool {
	held := false // by this call
	look := time.NewTicker(p.every)
	defer look.Stop()
	for missed := 0; ; {
		select {
		case <-answered:
			if ctx.Err() != nil || p.c.Err() != nil {
				return false
			}
			if held || p.g.IsPaused() {
				p.answeredAgain(ctx)
			}
			return true
		case <-ctx.Done():
			return false
		case <-look.C:
		}
		if p.c.Held() && !held { // frozen by this daemon
			missed = 0
			continue
		}
		missed++
		silent := time.Duration(missed) * p.every
		if missed%p.most == 0 && p.frozen(ctx, silent) {
			p.loseFrozen(ctx, silent, held)
			held = true
		}
		if silent > deadAfter && !p.g.IsPaused() && !p.g.IsHost() {
			p.g.sb.reg.pool.Forget(p.g.sb.id)
			return false
		}
	}
}

// frozen reports whether the guest, silent for d, is frozen rather than busy.
func (p *poller) frozen(ctx context.Context, d time.Duration) bool {
	if p.g.IsHost() || d >= hungAfter {
		return true
	}
	p.g.inspect(ctx, p.g.sb.get().Instance, nil)
	p.g.mu.Lock()
	halted := p.g.halted
	p.g.mu.Unlock()
	return halted || p.g.sb.State() == Paused
}

// loseFrozen ends the calls that wait for the guest, which has been frozen for d; a pause has
// already ended them. The first time, the connections stay open because the guest may continue.
// again says that this is not the first time.
func (p *poller) loseFrozen(ctx context.Context, d time.Duration, again bool) {
	host := p.g.IsHost()
	if !host {
		p.g.hold(true)
		if p.g.IsPaused() {
			return
		}
	}
	silent := p.silentError(d)
	p.g.listening.set(silent)
	p.g.pauses.Interrupt(silent)
	if again && !host {
		p.g.inspect(ctx, p.g.sb.get().Instance, p.g.Silent(d))
		p.g.relays.close() // only now, because relayed commands end with their connections
	}
}

// answeredAgain records that the guest answers after it was silent or paused.
func (p *poller) answeredAgain(ctx context.Context) {
	p.g.listening.set(nil)
	if p.g.inspect(ctx, p.g.sb.get().Instance, nil) || p.g.IsPaused() {
		return
	}
	p.g.hold(false)
	p.g.answered(ctx)
}

// silentError returns the error for calls that wait for the guest, silent for d.
func (p *poller) silentError(d time.Duration) *interrupt.FrozenError {
	why := p.g.Silent(d)
	reach := p.g.Reach(why)
	refused, _ := errors.AsType[*wire.Error](reach)
	e := &interrupt.FrozenError{Refused: refused}
	if p.g.IsHost() {
		e.Lost = wire.LostError(wire.LostHost, text.Line(reach.Error(), 300))
		return e
	}
	e.Lost = wire.LostError(wire.LostGuest, fmt.Sprintf("sandbox %s: %v", p.g.sb.Name(), why))
	return e
}
