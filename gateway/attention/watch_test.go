package attention

import (
	"context"
	"errors"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A watch reports each session first, then changes, and an ended session as gone.
func TestWatchReportsChanges(t *testing.T) {
	var sessions []Session
	board := NewBoard(func(string) []Session { return sessions })
	one := func(needs Kind) Session {
		b := Brief{Needs: needs, Phase: wire.PhaseRunning}
		return Session{Sandbox: "demo", Owner: "alice", ID: "1", Name: "main", Brief: b,
			Need: func() Need { return Need{Session: "main", Needs: b.Needs, Phase: b.Phase} }}
	}
	w := board.Watch("alice")
	defer w.Close()
	for _, step := range []struct {
		now  []Session
		want Kind
		gone bool
	}{{[]Session{one(None)}, None, false}, {[]Session{one(Answer)}, Answer, false},
		{nil, None, true}} {
		sessions = step.now
		board.Change()
		got, err := w.Next(t.Context())
		if err != nil || len(got) != 1 || got[0].Needs != step.want || got[0].Gone != step.gone ||
			got[0].Sandbox != "demo" || got[0].owner != "alice" {
			t.Errorf("reported %+v, %v; want %q, gone %v", got, err, step.want, step.gone)
		}
	}
}

// A watch ends with the board, also if the board ends first.
func TestWatchEndsWithTheBoard(t *testing.T) {
	board := NewBoard(func(string) []Session { return nil })
	w := board.Watch("alice")
	defer w.Close()
	if err := w.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	over := errors.New("the daemon is shutting down")
	board.Close(over)
	if err := w.Wait(t.Context()); !errors.Is(err, over) {
		t.Errorf("Wait = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Wait(ctx); err == nil {
		t.Error("Wait returns after the end")
	}
}

// Watched is true only for principals with a watch, and a wait for its change returns.
func TestWatched(t *testing.T) {
	board := NewBoard(func(string) []Session { return nil })
	watched, turned := board.Watched([]string{"alice"})
	if watched {
		t.Error("not watched")
	}
	w := board.Watch("bob")
	<-turned
	if watched, _ := board.Watched([]string{"alice"}); watched {
		t.Error("alice's sessions are watched for bob")
	}
	all := board.Watch("")
	if watched, _ := board.Watched([]string{"alice"}); !watched {
		t.Error("a watch of all sessions does not count")
	}
	all.Close()
	w.Close()
	if watched, _ := board.Watched([]string{"bob"}); watched {
		t.Error("a watch that was closed counts")
	}
}
