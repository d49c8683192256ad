package sshconn

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"
)

// reliefEvery is the time between two looks at the memory of the process.
const reliefEvery = time.Second

// Holder is a connection that may be ended for what it keeps in memory.
type Holder struct {
	Principal string // whose it is
	Kept      int64  // bytes, as of Meter.Kept
	End       func()
}

// Relieve keeps the memory of the process within limit bytes until ctx ends, by ending connections
// of those that holders returns. Each connection has a budget of its own, but a principal may make
// many of them, and what arrives for a channel that is not read yet is in no budget.
func Relieve(ctx context.Context, limit int64, log *slog.Logger, holders func() []Holder) {
	tick := time.NewTicker(reliefEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if inUse() <= limit {
			continue
		}
		runtime.GC() // much of it may not be in use any more
		excess := inUse() - limit
		if excess <= 0 {
			continue
		}
		for _, h := range shed(holders(), excess, limit) {
			log.Warn("connection ended: memory is short and it keeps much of it unread", "principal", h.Principal, "bytes", h.Kept)
			h.End()
		}
	}
}

// inUse is how many bytes the objects of this process take.
func inUse() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// shed returns the connections to end, which together keep as much as excess, or as much as there
// is: first those of the principal whose connections keep most, of these the largest. A connection
// that keeps less than one channel may is left alone. So are all where they keep less than half of
// limit together: an upload looks like a connection that nobody reads.
func shed(all []Holder, excess, limit int64) (ended []Holder) {
	holders, sums := make(map[string][]Holder), make(map[string]int64)
	var total int64
	for _, h := range all {
		if h.Kept >= channelWindow {
			holders[h.Principal] = append(holders[h.Principal], h)
			sums[h.Principal] += h.Kept
			total += h.Kept
		}
	}
	if total < limit/2 {
		return nil
	}
	for excess > 0 && len(sums) > 0 {
		worst := ""
		for p, sum := range sums {
			if sum > sums[worst] {
				worst = p
			}
		}
		list := holders[worst]
		slices.SortFunc(list, func(a, b Holder) int { return int(b.Kept - a.Kept) })
		for _, h := range list {
			if excess <= 0 {
				break
			}
			ended = append(ended, h)
			excess -= h.Kept
		}
		delete(sums, worst)
	}
	return ended
}
