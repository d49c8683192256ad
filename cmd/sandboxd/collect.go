package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// collectEvery is how often the daemon looks how much it allocates.
	collectEvery = 250 * time.Millisecond
	// muchGarbage is how much a second makes it collect less often. The SSH library allocates each packet that arrives, so
	// only bulk transfers come near it.
	muchGarbage = 32 << 20
	// rarely is the percentage then: the heap is small, and a collection for every four megabytes of a transfer costs a
	// quarter of all that the daemon does for it.
	rarely = 400
)

// collectRarely lets the heap grow further between two collections while much is transferred, and as usual at all other
// times, so that idle connections cost no more than they must. It returns when ctx ends. usual is the percentage at
// other times, as GOGC has it.
func collectRarely(ctx context.Context) {
	usual := debug.SetGCPercent(100)
	debug.SetGCPercent(usual)
	if usual < 0 || usual >= rarely {
		return // somebody knows better
	}
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(allocated)
	before, now := allocated[0].Value.Uint64(), usual
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(allocated)
		total := allocated[0].Value.Uint64()
		want := usual
		if total-before > muchGarbage*uint64(collectEvery)/uint64(time.Second) {
			want = rarely
		}
		if want != now {
			debug.SetGCPercent(want)
			now = want
		}
		before = total
	}
}
