package attention

import (
	"context"
	"log/slog"
	"testing"
	"time"
)

// A notice that does not fit is dropped and counted, and Run still ends.
func TestHookDropsWhatItCannotTake(t *testing.T) {
	board := NewBoard(func(string) []Session { return nil })
	h := NewHook(HookOptions{Exec: []string{"/bin/sleep", "1000"}, Timeout: time.Hour}, board,
		slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); h.Run(ctx) }()
	for range hookWaiting + 2 { // one is being delivered, the lane is full, one does not fit
		h.add("demo~main", Notice{Need: Need{Sandbox: "demo", Session: "main", Needs: Answer}})
	}
	if n := h.Counts().Dropped; n < 1 {
		t.Errorf("%d notices were dropped", n)
	}
	cancel()
	<-done
}

// A new sandbox with the name of a removed one comes after it.
func TestSortPutsWhatIsGoneFirst(t *testing.T) {
	all := []Need{{Sandbox: "demo", Session: "main", id: "new"},
		{Sandbox: "demo", Session: "main", id: "old", Gone: true},
		{Sandbox: "a", Session: "x"}}
	sortNeeds(all)
	if all[0].Sandbox != "a" || all[1].id != "old" || all[2].id != "new" {
		t.Errorf("sorted %+v", all)
	}
}
