package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What passed once has to pass again, whatever it is called.
func TestRatchet(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(ratchet), 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := newReport("", "both")
	if err != nil {
		t.Fatal(err)
	}
	r.results = []result{{group: "attacks", name: "two words"}, {group: "clients", name: "one"},
		{group: "clients", name: "gone"}, {group: "clients", name: "never", err: errors.New("no")}}
	if err := r.tighten(); err != nil {
		t.Fatal(err)
	}
	if broken, _, err := r.judge(); err != nil || len(broken) > 0 {
		t.Errorf("the same results: broken %q, %v", broken, err)
	}
	r.results = []result{{group: "attacks", name: "two words", err: errors.New("no")},
		{group: "clients", name: "one"}, {group: "clients", name: "never", err: errors.New("no")}}
	broken, failed, err := r.judge()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"attacks/two words", "clients/gone (no longer there)"},
		broken); diff != "" {
		t.Errorf("broken (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"clients/never"}, failed); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
}
