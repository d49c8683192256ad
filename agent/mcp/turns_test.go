package mcp

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestCallWaitsForCancelledCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts turns
		here := wire.Target{Sandbox: "box", Session: "main"}
		ctx, cancel := context.WithCancel(t.Context())
		leave, err := ts.enter(ctx, here)
		if err != nil {
			t.Fatal(err)
		}
		beside, err := ts.enter(t.Context(), here) // the first goes on, too
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		elsewhere, err := ts.enter(t.Context(), wire.Target{Sandbox: "box", Session: "other"})
		if err != nil {
			t.Fatal(err)
		}
		gone, leaveIt := context.WithCancelCause(t.Context())
		refused := make(chan error, 1)
		go func() {
			_, err := ts.enter(gone, here)
			refused <- err
		}()
		entered := make(chan func(), 1)
		go func() {
			next, err := ts.enter(t.Context(), here)
			if err != nil {
				t.Error(err)
			}
			entered <- next
		}()
		synctest.Wait()
		select {
		case <-entered:
			t.Fatal("a call did not wait for the cancelled one before it")
		default:
		}
		leaveIt(errGone)
		if err := <-refused; !errors.Is(err, errGone) {
			t.Errorf("got %v, want the cause of the caller's end", err)
		}
		leave()
		(<-entered)()
		beside()
		elsewhere()
		if len(ts.calls) != 0 {
			t.Errorf("calls are left: %v", ts.calls)
		}
	})
}
