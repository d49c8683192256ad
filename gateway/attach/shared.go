package attach

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// idleShared is how long an unused shared attachment that holds nothing is kept.
const idleShared = 10 * time.Minute

// sharedKey identifies a shared attachment. A key that may only watch has another attachment than
// one that drives, so that neither ends the other's.
type sharedKey struct {
	sandbox            Sandbox
	principal, session string
	rights             wire.Rights
}

// shared is the attachment of all calls of the command table by one principal on one session. Each
// call is a connection of its own; together they are one party.
type shared struct {
	opening    chan struct{} // semaphore for opening the attachment
	attachment *Attachment   // guarded by opening; by Attachments.mu while calls is 0
	calls      int           // guarded by Attachments.mu; calls of Shared in progress
	used       time.Time     // guarded by Attachments.mu
}

// Shared returns the shared attachment of party's principal, with party's rights, on a session of
// sb. If there is none, it joins as party. Callers do not close it.
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
		// Its shell may have ended. A caller that needs a shell gets a new one in the same session.
		if !o.Create || !a.Live().Ended() {
			return a, nil
		}
		a.Disconnect(interrupt.ErrLeft)
	}
	if a := s.attachment; o.Typed && a != nil && a.Live() != nil && a.Live().Final() {
		o.Create = false // the program that the party knew ended with its sandbox
	}
	o.Fresh, o.Close, o.shared = false, false, true
	a, err := all.Join(ctx, sb, party, t, o)
	if err != nil {
		return nil, err
	}
	s.attachment = a
	return a, nil
}

// Expire closes shared attachments that have been unused for long, and removes ended ones. An
// attachment that holds the keyboard stays, because its principal has a program that waits.
func (all *Attachments) Expire() {
	var idle []*Attachment
	all.mu.Lock()
	for key, s := range all.shared {
		if s.calls > 0 { // a call of Shared may be setting the attachment
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
