package machine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// One call more than there are turns waits, says so, and goes on when a turn ends or its context.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := make(Turns, 1)
		said := 0
		progress := func(string) { said++ }
		done, err := turns.Take(t.Context(), progress)
		if err != nil || said != 0 {
			t.Fatalf("the first call: said %d, %v", said, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("gone")
		cancel(why)
		if _, err := turns.Take(ctx, progress); !errors.Is(err, why) || said != 1 {
			t.Errorf("a caller that left: said %d, %v", said, err)
		}
		took := false
		go func() {
			done, err := turns.Take(t.Context(), progress)
			if err != nil {
				t.Error(err)
				return
			}
			took = true
			done()
		}()
		synctest.Wait()
		if took {
			t.Error("two calls have the only turn")
		}
		done()
		synctest.Wait()
		if !took || len(turns) != 0 {
			t.Errorf("took %v, %d turns are left taken", took, len(turns))
		}
	})
}
