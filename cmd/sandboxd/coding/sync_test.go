package coding

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
)

// Run fetches only when there is something new, and at most once a minute. Finish always fetches,
// and returns what all fetches together brought.
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const web, wip = "refs/sandboxes/web/web", "refs/sandboxd/saved/web/wip"
		results := []*clone.Fetched{
			{Base: "0", Refs: []clone.Ref{{Name: wip, Commit: "w1", New: 1},
				{Name: web, Commit: "2", New: 2}}},
			{Base: "0", Refs: []clone.Ref{{Name: "refs/sandboxes/web/side", Commit: "0"},
				{Name: web, Commit: "3", Before: "2", New: 1}}},
		}
		news := []struct {
			some bool
			err  error
		}{{}, {}, {true, errors.New("no answer")}, {true, nil}, {}}
		begun := time.Now()
		var asked, fetched []time.Duration
		s := &Sync{
			hasNew: func(context.Context) (bool, error) {
				asked = append(asked, time.Since(begun))
				n := news[len(asked)-1]
				return n.some, n.err
			},
			fetch: func(context.Context) (*clone.Fetched, error) {
				fetched = append(fetched, time.Since(begun))
				return results[len(fetched)-1], nil
			},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Second)
		defer cancel()
		s.Run(ctx)
		const m = time.Minute
		if diff := cmp.Diff([]time.Duration{m, 2 * m, 3 * m, 4 * m, 5 * m}, asked); diff != "" {
			t.Errorf("asked: %s", diff)
		}
		if diff := cmp.Diff([]time.Duration{4 * m}, fetched); diff != "" {
			t.Errorf("fetched: %s", diff)
		}
		got, err := s.Finish(t.Context())
		if err != nil {
			t.Error(err)
		}
		want := []Arrival{{Ref: web, Commit: "3", Commits: 3}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// Finish returns what came before an error, and ends if the sandbox does not answer.
func TestSyncFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Sync{fetch: func(ctx context.Context) (*clone.Fetched, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		s.last = &clone.Fetched{Refs: []clone.Ref{{Name: "refs/sandboxd/saved/web/wip",
			Commit: "1"}}}
		got, err := s.Finish(t.Context())
		if err == nil || err.Error() != "the fetch does not end within 1m0s" {
			t.Errorf("error %v", err)
		}
		if len(got) != 1 || !got[0].Saved() {
			t.Errorf("got %+v", got)
		}
	})
}
