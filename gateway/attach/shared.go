package attach

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// idleShared is how long an unused shared attachment that holds nothing is kept.
const idleShared = 10 * time.Minute

// sharedKey says whose shared attachment it is and where. A key that may only watch has another
// than one that drives: neither ends the other's.
type sharedKey struct {
	sandbox            Sandbox
	principal, session string
	rights             wire.Rights
}

// shared is the attachment of all calls of the command table by one principal on one session: each
// call is a connection of its own, and together they are one party.
type shared struct {
	opening    chan struct{} // semaphore of who makes it
	attachment *Attachment   // guarded by opening; while calls is 0 by Attachments.mu
	calls      int           // guarded by Attachments.mu; of Shared, under way
	used       time.Time     // guarded by Attachments.mu
}

// Shared returns the one lasting attachment of party's principal, with party's rights, on a session
// of sb; party is what it is where there is none yet. It is not closed by its callers.
func (all *Attachments) Shared(ctx context.Context, sb Sandbox, party wire.Party, t wire.Target,
	o JoinOptions) (*Attachment, error) {
	key := sharedKey{sb, party.Name, t.Session, party.Rights}
	all.mu.Lock()
	s := all.shared[key]
	if s == nil {
		s = &shared{opening: make(chan struct{}, 1)}
		all.shared[key] = s
	}
	s.calls++
	s.used = time.Now()
	all.mu.Unlock()
	defer func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		s.calls--
	}()

	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if a := s.attachment; a != nil && a.Err() == nil && !a.Live().Final() {
		// Its shell may have ended since: who asks for it to be there gets a new one on the same
		// session.
		if !o.Create || !a.Live().Ended() {
			return a, nil
		}
		a.Disconnect(interrupt.ErrLeft)
	}
	if a := s.attachment; o.Typed && a != nil && a.Live() != nil && a.Live().Final() {
		o.Create = false // the program that the party knew has ended with its sandbox
	}
	o.Fresh, o.Close, o.shared = false, false, true
	a, err := all.Join(ctx, sb, party, t, o)
	if err != nil {
		return nil, err
	}
	s.attachment = a
	return a, nil
}

// Expire closes shared attachments that nobody has used for long, and forgets those that have
// ended. One that holds the keyboard stays: its principal has a program waiting.
func (all *Attachments) Expire() {
	var idle []*Attachment
	all.mu.Lock()
	for key, s := range all.shared {
		if s.calls > 0 { // a call of Shared may set the attachment now
			continue
		}
		a := s.attachment
		if a != nil && a.Calls() > 0 {
			continue
		}
		over := a == nil || a.Err() != nil || a.Live().Final()
		if over || time.Since(s.used) > idleShared && a.Live().Keyboard() != a.Party().String() {
			delete(all.shared, key)
			if a != nil {
				idle = append(idle, a)
			}
		}
	}
	all.mu.Unlock()
	for _, a := range idle {
		a.Disconnect(interrupt.ErrLeft)
	}
}
