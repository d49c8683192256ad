package sshconn

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"
)

// reliefEvery is the interval of checks of the process's memory.
const reliefEvery = time.Second

// Holder is a connection that may be ended to free memory.
type Holder struct {
	Principal string // owner of the connection
	Kept      int64  // bytes, as of Meter.Kept
	End       func()
}

// Relieve keeps the memory of the process within limit bytes until ctx ends. It ends connections of
// holders. Each connection has its own budget, but a principal may have many connections, and
// received bytes of unread channels are in no budget.
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
		runtime.GC() // much of it may be garbage
		excess := inUse() - limit
		if excess <= 0 {
			continue
		}
		for _, h := range shed(holders(), excess, limit) {
			log.Warn(
				"connection ended to free memory: it has too much unread data",
				"principal",
				h.Principal,
				"bytes",
				h.Kept,
			)
			h.End()
		}
	}
}

// inUse returns the bytes of the objects of this process.
func inUse() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// shed returns the connections to end, which together hold at least excess bytes if possible. It
// begins with the principal whose connections hold most, and with the largest of these. It spares
// connections that hold less than one channel may. It spares all if they hold less than half of
// limit together, because an upload looks like an unread connection.
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
