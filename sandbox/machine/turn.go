package machine

import (
	"context"
	"runtime"
)

// Turns bounds how many missing images a backend builds and pulls at a time.
type Turns chan struct{}

// NewTurns returns Turns for this machine.
func NewTurns() Turns { return make(Turns, max(2, runtime.NumCPU())) }

// Take waits for a turn, and reports that it waits. The caller calls done in the end. Another call
// may have got the same image meanwhile.
func (t Turns) Take(ctx context.Context, progress func(line string)) (done func(), err error) {
	done = func() { <-t }
	select {
	case t <- struct{}{}:
		return done, nil
	default:
	}
	progress("waiting for other images")
	select {
	case t <- struct{}{}:
		return done, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
