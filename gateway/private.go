package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// secret is what a person sees in a private stretch of their own: the session's screen as it was when the stretch began, fed
// with what the guest sends to this person alone. It is nowhere else, and gone when the stretch is over.
type secret struct {
	mu      sync.Mutex
	display *display // guarded by mu; nil unless there is a stretch
}

// Private begins or ends a private stretch: from then on what the terminal shows is for this person alone, until the keyboard
// is given back. It needs the keyboard, or a free one, which it takes.
func (a *Attachment) Private(ctx context.Context, on bool) error {
	if err := a.mayDrive(); err != nil {
		return err
	}
	if _, err := a.Request(ctx, wire.Request{Verb: wire.VerbPrivate, On: on}); err != nil {
		return err
	}
	if on {
		a.took()
	}
	return nil
}

// Screen is Live.Screen, but in a private stretch of the attachment's own what this person alone sees.
func (a *Attachment) Screen(f func(s *screen.Screen, offset uint64)) error {
	a.secret.mu.Lock()
	defer a.secret.mu.Unlock()
	d := a.secret.display
	if d == nil {
		return a.live.Screen(f)
	}
	cols, rows := a.live.Size()
	if c, r := d.screen.Size(); c != cols || r != rows {
		d.screen.Resize(cols, rows)
	}
	f(d.screen, d.fed)
	return nil
}

// replicaWithin is how long a private stretch waits for the replica to have what was printed before it.
const replicaWithin = 5 * time.Second

// secretOutput takes output that the guest sends to this party alone.
func (a *Attachment) secretOutput(off uint64, p []byte) {
	a.mu.Lock()
	l := a.live
	a.mu.Unlock()
	if l == nil || off > maxLog {
		return
	}
	a.secret.mu.Lock()
	d := a.secret.display
	if d != nil && off < d.fed { // on another connection
		d = nil
	}
	a.secret.mu.Unlock()
	if d == nil { // the first of a stretch
		d = new(display) // nobody else's until it shows what was before; that may take long
		if err := l.upTo(a.life, off); err != nil {
			a.hub.log.Debug("private stretch without what was before it", "sandbox", a.box.id, "session", l.name, "err", err)
		}
		if err := l.feedDisplay(d); err != nil {
			a.hub.log.Warn("private stretch not shown", "sandbox", a.box.id, "session", l.name, "err", err)
			return
		}
	}
	a.secret.mu.Lock()
	defer a.secret.mu.Unlock()
	a.secret.display = d
	_, _ = d.screen.Write(p) // in memory: it takes everything
	d.fed = off + uint64(len(p))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changeLocked() // whoever paints looks again
}

// forgetSecret ends what a.secret shows.
func (a *Attachment) forgetSecret() {
	a.secret.mu.Lock()
	defer a.secret.mu.Unlock()
	a.secret.display = nil
}

// upTo waits until the replica has the log up to off, for a while.
func (l *Live) upTo(ctx context.Context, off uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, replicaWithin, errors.New("the session's replica is behind"))
	defer cancel()
	for gen := l.Generation(); l.Len() < off; {
		next, err := l.Wait(ctx, gen)
		if err != nil {
			return err
		}
		gen = next
	}
	return nil
}

// Private is who has a private stretch, as Party.String, or empty.
func (l *Live) Private() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.private
}

// Asking is who asks for the keyboard, as Party.String, or empty.
func (l *Live) Asking() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asking
}

// Needs is what the session needs, of whoever looks after it.
func (l *Live) Needs() attention.Kind {
	info := l.info()
	return attention.Of(info.Name, info.Argv, info.State)
}

// skipPrivate notes that the bytes up to off were a private stretch.
func (l *Live) skipPrivate(off uint64) {
	if off > maxLog {
		return
	}
	l.mu.Lock()
	rec := l.rec
	l.mu.Unlock()
	if rec != nil {
		if err := rec.Skip(off, wire.WhyPrivate); err != nil {
			l.trouble(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replica.skip(off)
	l.changeLocked()
}

// Private begins or ends a private stretch on the person that p has attached to a session.
func (h *Hub) Private(ctx context.Context, p Principal, t wire.Target, on bool) error {
	a, err := h.ownParty(ctx, p, t)
	if err != nil {
		return err
	}
	if a.party.Kind != wire.Person {
		e := wire.Errorf(wire.CodeUnavailable, "you have no terminal on %s to be private in", t)
		e.Hint = "join it by ssh first"
		return e
	}
	return a.Private(ctx, on)
}
