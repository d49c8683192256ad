package session

import (
	"context"
	"time"
)

// heedLook is when the prober looks first after output where nobody waits but those who heed: they want to know within a
// second, at next to no cost.
const heedLook = 20 * time.Millisecond

// heed makes the prober look, now and then, until ctx ends. Whoever only wants to hear of a state is no reason to look as often
// as for a call that waits.
func (s *session) heed(ctx context.Context) {
	s.mu.Lock()
	release := s.waitLocked()
	s.heeders++
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.heeders--
	s.mu.Unlock()
	release()
}

// heededLocked reports whether nobody waits but those who heed.
func (s *session) heededLocked() bool { return s.waiters == s.heeders }

// firstRest is how long the prober rests before its first look after output.
func (s *session) firstRest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.heededLocked() {
		return heedLook
	}
	return firstLook
}
