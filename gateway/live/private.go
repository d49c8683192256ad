package live

import (
	"context"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
)

// PrivateView is what one person sees in private mode of their own: the session's screen as it was
// when the mode began, fed with what the guest sends to this person alone. It exists nowhere else.
// The zero value is not in private mode.
//
// Its lock is taken before those of the session.
type PrivateView struct {
	mu      sync.Mutex
	display *display // guarded by mu; nil outside private mode
}

// Screen is s.Screen, but in private mode what this person alone sees.
func (v *PrivateView) Screen(s *Session, f func(sc *screen.Screen, offset uint64)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.display
	if d == nil {
		return s.Screen(f)
	}
	cols, rows := s.Size()
	if c, r := d.screen.Size(); c != cols || r != rows {
		d.screen.Resize(cols, rows)
	}
	f(d.screen, d.fed)
	return nil
}

// Output takes output of s that the guest sends to this person alone. Until ctx ends it waits for
// what was printed before.
func (v *PrivateView) Output(ctx context.Context, s *Session, off uint64, p []byte) {
	if off > maxLog {
		return
	}
	v.mu.Lock()
	d := v.display
	if d != nil && off < d.fed { // on another connection
		d = nil
	}
	v.mu.Unlock()
	if d == nil { // the first of this mode
		d = new(display) // nobody else's until it shows what was before; that may take long
		if err := waitFor(ctx, s, off); err != nil {
			s.log.Debug("private mode begins without what was before it", "err", err)
		}
		if err := d.feed(s); err != nil {
			s.log.Warn("private mode not shown", "err", err)
			return
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.display = d
	_, _ = d.screen.Write(p) // in memory: it takes everything
	d.fed = off + uint64(len(p))
	s.Notify() // its person's screen is drawn again
}

// End forgets what private mode showed.
func (v *PrivateView) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.display = nil
}

// waitFor waits until the copy of s has the log up to off, for a while.
func waitFor(ctx context.Context, s *Session, off uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, catchUpWithin/3, errBehind)
	defer cancel()
	for gen := s.Generation(); s.Len() < off; {
		next, err := s.Wait(ctx, gen)
		if err != nil {
			return err
		}
		gen = next
	}
	return nil
}
