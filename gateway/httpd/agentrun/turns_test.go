package agentrun

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Many calls of one principal do not block another's: the principal with the fewest running calls
// is next.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTurns(2, 10)
		var order []string
		ends := make(map[string]func())
		ask := func(who, call string) {
			go func() {
				done, err := all.take(t.Context(), who)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, call)
				ends[call] = done
			}()
			synctest.Wait()
		}
		for _, call := range []string{"a1", "a2", "a3", "a4"} {
			ask("alice", call)
		}
		ask("bob", "b1")
		for _, call := range []string{"a1", "b1", "a2", "a3", "a4"} {
			ends[call]()
			synctest.Wait()
		}
		if want := []string{"a1", "a2", "b1", "a3", "a4"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
		if all.all != 0 || len(all.running) != 0 || len(all.queue) != 0 {
			t.Errorf("left: %+v", all)
		}
	})
}

// The number of a principal's waiting calls is limited. A caller that gives up leaves the queue.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTurns(1, 3)
		done, err := all.take(t.Context(), "alice")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 3)
		for range 3 {
			go func() { _, err := all.take(ctx, "alice"); gone <- err }()
		}
		synctest.Wait()
		e := new(wire.Error)
		if _, err := all.take(t.Context(), "alice"); !errors.As(err, &e) ||
			e.Code != wire.CodeLimitQuota {
			t.Errorf("one more: %v", err)
		}
		cancel()
		for range 3 {
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		done()
		if done, err = all.take(t.Context(), "bob"); err != nil {
			t.Fatal(err)
		}
		done()
	})
}
