package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Tokens survive reopening, oldest first, and hashes are unique.
func TestTokens(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	now := time.UnixMilli(1_700_000_000_000)
	want := []Token{
		{ID: "b", Hash: []byte{1}, Principal: "alice", Kind: "agent", Rights: "drive", Label: "ci", Created: now},
		{ID: "a", Hash: []byte{2}, Principal: "bob", Kind: "person", Rights: "watch", Created: now.Add(time.Second), Expires: now.Add(time.Hour)},
	}
	for _, tok := range want {
		if err := s.AddToken(t.Context(), tok); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddToken(t.Context(), Token{ID: "c", Hash: []byte{2}}); err == nil {
		t.Error("two tokens have one hash")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	got, err := s.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	if err := s.DeleteToken(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteToken(t.Context(), "b"); !errors.Is(err, ErrNoToken) {
		t.Errorf("a second time: %v", err)
	}
	if got, err = s.Tokens(t.Context()); err != nil || len(got) != 1 || got[0].ID != "a" {
		t.Errorf("%v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
