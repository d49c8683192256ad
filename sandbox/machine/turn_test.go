package machine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// An owner who has all turns waits, which is reported, until a turn or the context ends. Others do
// not wait.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, said := NewTurns(), 0
		progress := func(string) { said++ }
		var all []func()
		for _, owner := range []string{"ann", "ann", "bob"} {
			done, err := turns.Take(t.Context(), owner, progress)
			if err != nil || said != 0 {
				t.Fatalf("%s: said %d, %v", owner, said, err)
			}
			all = append(all, done)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("gone")
		cancel(why)
		if _, err := turns.Take(ctx, "ann", progress); !errors.Is(err, why) || said != 1 {
			t.Errorf("a caller that left: said %d, %v", said, err)
		}
		took := false
		go func() {
			done, err := turns.Take(t.Context(), "ann", progress)
			if err != nil {
				t.Error(err)
				return
			}
			took = true
			done()
		}()
		synctest.Wait()
		if took {
			t.Error("an owner has more turns than there are")
		}
		for _, done := range all {
			done()
			synctest.Wait()
		}
		if !took || len(turns.of) != 0 {
			t.Errorf("took %v, %d owners are left", took, len(turns.of))
		}
	})
}
