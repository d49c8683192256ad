package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// idleStanding is how long an unused standing party that holds nothing is kept.
const idleStanding = 10 * time.Minute

// standings are the agent parties of the command table: each call of it is a connection of its own, and together they are
// one party.
type standings struct {
	mu  sync.Mutex
	all map[standingKey]*standing // guarded by mu
}

// standingKey says whose party it is and where. A key that may only watch has another than one that drives: neither ends the other's.
type standingKey struct {
	principal, box, session string
	rights                  wire.Rights
}

type standing struct {
	opening    chan struct{} // semaphore of who makes it
	attachment *Attachment   // guarded by opening; while calls is 0 by standings.mu
	calls      int           // guarded by standings.mu; of Standing, under way
	used       time.Time     // guarded by standings.mu
}

func (s *standings) init() { s.all = make(map[standingKey]*standing) }

// Standing returns p's one lasting agent party on a session: all calls of the command table by one principal, with the same
// rights, are one party, however long in between. It is not closed by its callers.
func (h *Hub) Standing(ctx context.Context, p Principal, t wire.Target, o JoinOptions) (*Attachment, error) {
	b, here, err := h.reachable(p, t.Sandbox, wire.RightWatch, "")
	if err != nil {
		return nil, err
	}
	if t.Session == "" {
		t.Session = wire.DefaultSession
	}
	if o.Typed { // a shell would run what a program was to read
		l, state := b.sessions.Get(t.Session), b.get().state
		o.Create = o.Create && (l == nil || !l.Ended()) && (state == Running || state == Paused)
	}
	key := standingKey{p.Name, b.id, t.Session, here.rights()}
	h.standing.mu.Lock()
	st := h.standing.all[key]
	if st == nil {
		st = &standing{opening: make(chan struct{}, 1)}
		h.standing.all[key] = st
	}
	st.calls++
	st.used = time.Now()
	h.standing.mu.Unlock()
	defer func() {
		h.standing.mu.Lock()
		defer h.standing.mu.Unlock()
		st.calls--
	}()

	select {
	case st.opening <- struct{}{}:
		defer func() { <-st.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if a := st.attachment; a != nil && a.Err() == nil && !a.Live().Final() {
		// Its shell may have ended since: who asks for it to be there gets a new one on the same session.
		if !o.Create || !a.Live().Ended() {
			return a, nil
		}
		a.finish(errLeft)
	}
	if a := st.attachment; o.Typed && a != nil && a.Live() != nil && a.Live().Final() {
		o.Create = false // the program that the party knew has ended with its sandbox
	}
	o.Fresh, o.Close, o.standing = false, false, true
	a, err := h.attach(ctx, p, wire.Agent, t, o)
	if o.Typed && !o.Create && errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) && !errors.Is(err, ErrUnknown) {
		e := wire.Errorf(wire.CodeUnavailable, "the shell of %s has ended with its sandbox", t)
		e.Hint = "nothing was typed; run starts a new shell"
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	st.attachment = a
	return a, nil
}

// expire closes those that nobody has used for long, and forgets those that have ended. One that holds the keyboard
// stays: its principal has a program waiting.
func (s *standings) expire() {
	var idle []*Attachment
	s.mu.Lock()
	for key, st := range s.all {
		a := st.attachment
		if st.calls > 0 || a != nil && a.calls.Load() > 0 {
			continue
		}
		over := a == nil || a.Err() != nil || a.Live().Final()
		if over || time.Since(st.used) > idleStanding && a.Live().Keyboard() != a.Party().String() {
			delete(s.all, key)
			if a != nil {
				idle = append(idle, a)
			}
		}
	}
	s.mu.Unlock()
	for _, a := range idle {
		a.finish(errLeft)
	}
}
