//go:build linux

package proc

import (
	"slices"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// The modes of an inner terminal count: a shell that is about to edit its line changes them just
// before it waits for a key, and so between two steps of one reading.
func TestInnerModes(t *testing.T) {
	t.Parallel()
	needs(t, "script")
	x := open(t, "script", "-qc", "cat", "/dev/null")
	x.until("cat reads", func(f session.Facts) bool {
		return f.Blocked && slices.Contains(f.Argv, "cat")
	})
	_, s, err := (&look{}).once(t.Context(), x.tty, nil, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []modes{{canonical: true, echo: true}}; !slices.Equal(s.inner, want) {
		t.Fatalf("got %+v, want %+v", s.inner, want)
	}
	other := s
	other.inner = []modes{{}}
	if s.equal(other) {
		t.Error("other modes of the inner terminal are not seen")
	}
}
