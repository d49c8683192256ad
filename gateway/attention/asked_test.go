package attention

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Readers of one principal share a watch, hear of changes, and go round all sessions that ask.
func TestAsked(t *testing.T) {
	var mu sync.Mutex
	asks := map[string]time.Time{} // since when
	board := NewBoard(func(principal string) (all []Session) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range []string{"a", "b", "c", "watched"} {
			b := Brief{Phase: wire.PhaseRunning}
			since := asks[name]
			if !since.IsZero() {
				b.Needs = Answer
			}
			all = append(all, Session{Sandbox: name, Owner: principal, ID: name, Name: "main",
				Drives: name != "watched", Brief: b,
				Need: func() Need {
					return Need{Session: "main", Needs: b.Needs, Since: since}
				}})
		}
		return all
	})
	changed := make(chan struct{}, 100)
	var age time.Duration // of the questions
	ask := func(names ...string) {
		mu.Lock()
		clear(asks)
		for _, name := range names {
			asks[name] = time.Now().Add(-age)
		}
		mu.Unlock()
		board.Change()
	}
	at := func(name string) wire.Target { return wire.Target{Sandbox: name, Session: "main"} }
	first := board.Follow("alice", func() { changed <- struct{}{} })
	second := board.Follow("alice", func() {})
	board.mu.Lock()
	if n := board.watches["alice"]; n != 1 {
		t.Errorf("%d watches", n)
	}
	board.mu.Unlock()
	if n, _ := first.Others(at("a")); n != 0 {
		t.Errorf("%d ask at first", n)
	}
	ask("a", "c", "watched")
	<-changed
	for self, want := range map[string]struct {
		n    int
		next string
	}{"a": {1, "c"}, "b": {2, "c"}, "c": {1, "a"}, "d": {2, "a"}} {
		for _, reader := range []*Asked{first, second} {
			if n, next := reader.Others(at(self)); n != want.n || next != at(want.next) {
				t.Errorf("from %s: %d, %v; want %v", self, n, next, want)
			}
		}
	}
	for _, reader := range []*Asked{first, second} {
		if began := reader.Began(); !slices.Equal(began, []wire.Target{at("a"), at("c")}) {
			t.Errorf("began: %v", began)
		}
		if began := reader.Began(); len(began) > 0 {
			t.Errorf("began again: %v", began)
		}
	}
	age = time.Hour // its guest had nobody to report it to
	ask("a", "b", "c")
	<-changed
	if began := first.Began(); len(began) > 0 {
		t.Errorf("began long ago: %v", began)
	}
	age = 0
	ask()
	<-changed
	if n, next := first.Others(at("b")); n != 0 || next != (wire.Target{}) {
		t.Errorf("%d, %v when none asks", n, next)
	}
	first.Close()
	ask("b")
	second.Close()
	if len(board.follows) != 0 || len(board.watches) != 0 {
		t.Errorf("%v, %v remain", board.follows, board.watches)
	}
	third := board.Follow("alice", func() { changed <- struct{}{} })
	<-changed
	board.Close(errors.New("over"))
	third.Close()
}
