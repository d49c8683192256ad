package lifecycle

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/store"
)

// journal writes the events of sandboxes to the store in batches, so that no act waits for a disk.
type journal struct {
	reg  *Registry
	wake chan struct{}

	mu          sync.Mutex
	waiting     []store.Event // guarded by mu
	connections int           // guarded by mu; how many of waiting
	dropped     int           // guarded by mu
}

const (
	maxWaiting = 10_000
	// A sandbox can make any number of connections. Their events must not displace others.
	maxConnections = maxWaiting / 2
	batchWithin    = 100 * time.Millisecond // events within it share a write
)

func (j *journal) init(reg *Registry) {
	j.reg, j.wake = reg, make(chan struct{}, 1)
}

// add queues an event. It never blocks; when the queue is full the event is dropped.
func (j *journal) add(id, kind string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		j.reg.log.Error("event not written", "sandbox", id, "kind", kind, "err", err)
		return
	}
	j.mu.Lock()
	room := len(j.waiting) < maxWaiting
	if kind == store.Connection {
		if room = room && j.connections < maxConnections; room {
			j.connections++
		}
	}
	if room {
		j.waiting = append(j.waiting, store.Event{Sandbox: id, Time: time.Now(), Kind: kind,
			Data: text})
	} else {
		j.dropped++
		j.reg.counts.eventsDropped.Add(1)
	}
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// flush writes the queued events.
func (j *journal) flush(ctx context.Context) {
	j.mu.Lock()
	batch, dropped := j.waiting, j.dropped
	j.waiting, j.connections, j.dropped = nil, 0, 0
	j.mu.Unlock()
	if dropped > 0 {
		j.reg.log.Warn("events dropped: the store is too slow", "events", dropped)
	}
	if len(batch) == 0 {
		return
	}
	if err := j.reg.options.Store.AddEvents(ctx, batch...); err != nil {
		j.reg.log.Error("events lost", "events", len(batch), "err", err)
	}
}

// run writes events until ctx ends, and then the rest.
func (j *journal) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-j.wake:
		case <-ctx.Done():
			j.flush(context.WithoutCancel(ctx))
			return
		}
		timer.Reset(batchWithin)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		j.flush(context.WithoutCancel(ctx))
	}
}
