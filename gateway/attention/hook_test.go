package attention

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
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

// What begins while a person is attached is a message once the person has left, and then only once.
// The program hears of the beginning.
func TestMessageOnceThePersonHasLeft(t *testing.T) {
	was := reported{}
	for i, step := range []struct {
		now             Need
		notice, message bool
	}{
		{Need{}, false, false},
		{Need{Watched: true}, false, false},
		{Need{Needs: Answer, Watched: true}, true, false},
		{Need{Needs: Answer, Watched: true}, false, false}, // the keyboard has changed
		{Need{Needs: Answer}, true, true},
		{Need{Needs: Answer}, false, false},
		{Need{Needs: Answer, Watched: true}, false, false},
		{Need{Needs: Answer}, false, false},
		{Need{Needs: Rest, Watched: true}, true, false},
		{Need{Watched: true}, true, false},
		{Need{}, false, false},
		{Need{Needs: Answer}, true, false},
	} {
		n, notice := was.next(step.now)
		if notice != step.notice || n.message != step.message {
			t.Errorf("%d: notice %v, message %v; want %v, %v", i, notice, n.message, step.notice,
				step.message)
		}
	}
}

// A message for people alone goes to people alone.
func TestMessageAlone(t *testing.T) {
	for format, want := range map[string]uint64{FormatSlack: 1, FormatJSON: 0} {
		server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		h := NewHook(HookOptions{URL: server.URL, Format: format, Exec: []string{"/bin/false"}},
			NewBoard(func(string) []Session { return nil }), slog.New(slog.DiscardHandler))
		h.call(t.Context(), Notice{Need: Need{Sandbox: "demo", Session: "main", Needs: Answer},
			message: true})
		if got := h.Counts(); got != (HookCounts{Delivered: want}) {
			t.Errorf("%s: %+v, want %d delivered", format, got, want)
		}
		server.Close()
	}
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
