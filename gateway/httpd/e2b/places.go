package e2b

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandboxd/sandboxd/gateway"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// places holds the sandboxes with recent requests.
type places struct {
	hub      *gateway.Hub
	access   *access
	problems *problems

	tasks sync.WaitGroup // run waits for them
	ended chan struct{}  // closed when run is about to return

	mu     sync.Mutex
	all    map[string]*place // guarded by mu; by the sandbox's ID
	closed bool              // guarded by mu
}

func newPlaces(hub *gateway.Hub, a *access, pr *problems) *places {
	return &places{hub: hub, access: a, problems: pr, all: make(map[string]*place),
		ended: make(chan struct{})}
}

// placesEvery is the interval of tidy.
const placesEvery = 5 * time.Second

// run closes unused places, and all of them when ctx ends. It returns when everything has ended.
func (ps *places) run(ctx context.Context) {
	tick := time.NewTicker(placesEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			ps.tidy()
		case <-ctx.Done():
		}
	}
	ps.mu.Lock()
	ps.closed = true
	all := ps.all
	ps.all = nil
	ps.mu.Unlock()
	close(ps.ended)
	for _, pl := range all {
		pl.close()
	}
	ps.tasks.Wait()
}

// tidy closes unused connections and deletes unused places.
func (ps *places) tidy() {
	ps.mu.Lock()
	all := maps.Clone(ps.all)
	ps.mu.Unlock()
	for id, pl := range all {
		if !pl.rest() {
			continue
		}
		ps.mu.Lock()
		if ps.all[id] == pl && pl.unused() {
			delete(ps.all, id)
		}
		ps.mu.Unlock()
	}
}

// start runs f, which must end soon after its place is closed.
func (ps *places) start(f func()) { ps.tasks.Go(f) }

// place returns the place of a sandbox, or nil after run has ended.
func (ps *places) place(i lifecycle.Info) *place {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		return nil
	}
	pl := ps.all[i.ID]
	if pl == nil {
		pl = &place{places: ps, id: i.ID, name: i.Name, opening: make(chan struct{}, 1),
			looks: rate.NewLimiter(watchedRate, maxWatched), processes: make(map[uint32]*process),
			watchers: make(map[string]*watcher), notebooks: make(map[string]*notebook)}
		ps.all[i.ID] = pl
	}
	pl.mu.Lock()
	pl.left = time.Now() // keeps it until the request is counted
	pl.mu.Unlock()
	return pl
}
