package store

import (
	"slices"
	"testing"
	"time"
)

// Shares survive reopening, end with their sandbox, and can be added to a store of an older
// version.
func TestShares(t *testing.T) {
	dir := stateDir(t)
	s := open(t, dir)
	for _, q := range []string{`DROP TABLE tokens`, `DROP TABLE shares`,
		`DELETE FROM goose_db_version WHERE version_id >= 2`} {
		if _, err := s.db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Add(t.Context(), Sandbox{ID: "one", Name: "demo", Owner: "alice", State: "running",
		Spec: []byte("{}"), Since: time.Now(), Created: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	for _, sh := range []Share{{"one", "carl", "watch"}, {"one", "bob", "watch"},
		{"one", "bob", "drive"}, {"gone", "bob", "watch"}} {
		if err := s.PutShare(t.Context(), sh); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	got, err := s.Shares(t.Context())
	if want := []Share{{"one", "bob", "drive"}, {"one", "carl", "watch"}}; err != nil ||
		!slices.Equal(got, want) {
		t.Fatalf("%v, %v, want %v", got, err, want)
	}
	for range 2 {
		if err := s.DeleteShare(t.Context(), "one", "carl"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if got, err = s.Shares(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("without its sandbox: %v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
