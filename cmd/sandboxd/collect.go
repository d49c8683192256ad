package main

import (
	"context"
	"log/slog"
	"runtime"
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
	// In restAfter looks at a stretch without more than littleGarbage it has come to rest. What it then left behind since the last
	// time, if that is worthGivingBack, is collected and given back: nothing else would do so for minutes.
	restAfter       = 4
	littleGarbage   = 256 << 10
	worthGivingBack = 2 << 20

	tellEvery = 2 * time.Second // of how many goroutines there are
)

// tellGoroutines logs how many there are, where somebody wants to know that much. It returns when ctx ends.
func tellGoroutines(ctx context.Context, log *slog.Logger) {
	if !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			log.Debug("runtime", "goroutines", runtime.NumGoroutine())
		}
	}
}

// collectRarely lets the heap grow further between two collections while much is transferred, and as usual at all other
// times, so that idle connections cost no more than they must. It returns when ctx ends. usual is the percentage at
// other times, as GOGC has it. Memory that transfers and logins needed is given back once they are over.
func collectRarely(ctx context.Context) {
	usual := debug.SetGCPercent(100)
	debug.SetGCPercent(usual)
	if usual < 0 || usual >= rarely {
		return // somebody knows better
	}
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(allocated)
	before, now := allocated[0].Value.Uint64(), usual
	given, quiet := before, 0
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
		if quiet++; total-before > littleGarbage {
			quiet = 0
		}
		if quiet >= restAfter && total-given > worthGivingBack {
			debug.FreeOSMemory()
			given = total
		}
		before = total
	}
}
