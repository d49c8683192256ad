package sshconn

import (
	"slices"
	"testing"
)

// The connections of the largest holder end first, and no more than necessary.
func TestShed(t *testing.T) {
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		alice         int64 // what her one connection keeps
		excess, limit int64
		want          []string
	}{
		"they do not keep half of the limit": {11 * mib, 15 * mib, 60 * mib, nil},
		"those of the largest holder": {12 * mib, 15 * mib, 60 * mib,
			[]string{"bob 10", "bob 8"}},
		"one is enough": {12 * mib, 10 * mib, 60 * mib, []string{"bob 10"}},
		"not enough": {12 * mib, 100 * mib, 10 * mib,
			[]string{"bob 10", "bob 8", "alice"}},
		"one that keeps most alone": {20 * mib, 15 * mib, 60 * mib, []string{"alice"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			add := func(id, principal string, kept int64) Holder {
				return Holder{
					Principal: principal,
					Kept:      kept,
					End:       func() { got = append(got, id) },
				}
			}
			all := []Holder{
				add("bob 8", "bob", 8*mib),
				add("alice", "alice", tt.alice),
				add("bob 1", "bob", mib),
				add("bob 10", "bob", 10*mib),
			}
			for _, h := range shed(all, tt.excess, tt.limit) {
				h.End()
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
