package attach

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// MaxRepeats is maxRepeats.
const MaxRepeats = maxRepeats

// Repeats returns a function that reopens a's stream for a call that was sent to its guest. Call it
// once each time the stream breaks.
func (a *Attachment) Repeats() func(context.Context) (*wire.Client, error) {
	s := &sent{party: a.client.Attached().Resume}
	return func(ctx context.Context) (*wire.Client, error) { return a.resumed(ctx, s) }
}

// Age makes the shared attachments of a's daemon look unused for long, and expires them.
func (a *Attachment) Age() {
	all := a.all
	all.mu.Lock()
	for _, s := range all.shared {
		s.used = time.Now().Add(-2 * idleShared)
	}
	all.mu.Unlock()
	all.Expire()
}

// Expire expires the shared attachments of a's daemon.
func (a *Attachment) Expire() { a.all.Expire() }
