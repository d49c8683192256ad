package coding

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/clone"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	syncEvery = time.Minute
	// syncWithin bounds one fetch, for a sandbox that does not answer.
	syncWithin = time.Minute
)

// Arrival is what one or more fetches brought of a ref.
type Arrival struct {
	Ref     string // full name in the repository of this machine
	Commit  string // that it is at
	Commits int    // that are new
}

// Saved reports whether the ref is not a branch, but changes that are not committed, a stash or a
// commit on no branch.
func (a Arrival) Saved() bool { return !strings.HasPrefix(a.Ref, "refs/sandboxes/") }

// Sync gets the commits of one sandbox while a user works with it. One goroutine uses it.
type Sync struct {
	hasNew func(context.Context) (bool, error)
	fetch  func(context.Context) (*clone.Fetched, error)

	before map[string]string // objects of refs before the first fetch, by name
	last   *clone.Fetched    // nil before the first fetch
	added  map[string]int    // number of new commits by ref
}

// Sync returns a Sync for a sandbox; nil if it has no clone of a repository of this machine.
func (c *Client) Sync(info agent.Sandbox) (*Sync, error) {
	record, err := c.Clones.Find(info.ID)
	if err != nil || record == nil {
		return nil, err
	}
	return &Sync{
		hasNew: func(ctx context.Context) (bool, error) {
			client, err := c.DialSandbox(ctx, info.Name)
			if err != nil {
				return false, err
			}
			defer client.Close()
			return record.HasNew(ctx, client)
		},
		fetch: func(ctx context.Context) (*clone.Fetched, error) {
			if record, err := c.Clones.Find(info.ID); err != nil || record == nil {
				return nil, err // rm has fetched it
			}
			now, err := c.Existing(ctx, []agent.Sandbox{info})
			if err != nil {
				return nil, err
			}
			switch {
			case len(now) == 0: // another one may have its name
				return nil, wire.Errorf(wire.CodeNotFound, "sandbox %s was removed", info.Name)
			case now[0].State != agent.SandboxRunning:
				return nil, nil // a fetch would start it, or wait for it
			}
			return c.fetchNow(ctx, record, info, clone.MaxFetch)
		},
	}, nil
}

// Run fetches once a minute if there are new commits, until ctx ends. It tries again after an
// error.
func (s *Sync) Run(ctx context.Context) {
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		within, cancel := context.WithTimeout(ctx, syncWithin)
		if some, err := s.hasNew(within); some && err == nil {
			_ = s.once(within)
		}
		cancel()
	}
}

// Finish fetches once more, with what is not committed. It returns what came since the Sync began,
// branches first, also after an error. It does nothing for a sandbox that is stopped or paused, and
// for one that sandboxd rm has fetched and removed.
func (s *Sync) Finish(ctx context.Context) ([]Arrival, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, syncWithin,
		fmt.Errorf("the fetch does not end within %v", syncWithin))
	defer cancel()
	err := caused(ctx, s.once(ctx))
	if s.last == nil {
		return nil, err
	}
	var branches, saved []Arrival
	for _, r := range s.last.Refs {
		a, before := Arrival{r.Name, r.Commit, s.added[r.Name]}, s.before[r.Name]
		switch {
		case r.Commit == before, before == "" && r.Commit == s.last.Base:
			// Nothing came: the branch of a new clone is at its base.
		case a.Saved():
			saved = append(saved, a)
		default:
			branches = append(branches, a)
		}
	}
	return append(branches, saved...), err
}

// Fetched is the last result of a fetch; nil if there was none.
func (s *Sync) Fetched() *clone.Fetched { return s.last }

// once fetches and adds up what came.
func (s *Sync) once(ctx context.Context) error {
	fetched, err := s.fetch(ctx)
	if err != nil || fetched == nil {
		return err
	}
	if s.last == nil {
		s.before, s.added = make(map[string]string), make(map[string]int)
	}
	for _, r := range fetched.Refs {
		if _, seen := s.added[r.Name]; !seen {
			s.before[r.Name] = r.Before
		}
		s.added[r.Name] += r.New
	}
	s.last = fetched
	return nil
}
