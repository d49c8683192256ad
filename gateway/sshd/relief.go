package sshd

import (
	"context"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"
)

const (
	reliefEvery = time.Second // between two looks at the daemon's memory
	// takesLittle is how long a write to a client has waited when its channel counts with all that it may keep.
	takesLittle = time.Second
	// acknowledged is how many bytes that a client was sent make it send one beside its data: it says what it has room for.
	acknowledged = 512
)

// relieve keeps the daemon's memory within its limit until ctx ends. Each connection has a budget of its own, but whoever has a key may
// make many of them, and what arrives for a session that does not read yet is in no budget: the library takes 2 MiB for each channel.
func (h *house) relieve(ctx context.Context) {
	tick := time.NewTicker(reliefEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if inUse() <= h.limits.Memory {
			continue
		}
		runtime.GC() // much of it may be in use no more
		if excess := inUse() - h.limits.Memory; excess > 0 {
			h.shed(excess)
		}
	}
}

// inUse is how many bytes the objects of this process take.
func inUse() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// shed ends connections that together keep as much as excess, or as much as there is: first those of the principal whose connections keep
// most, of these the largest. What keeps less than one channel may is left alone, and so are all while it is not they who keep much: an
// upload under way looks like one that nobody reads.
func (h *house) shed(excess int64) {
	h.mu.Lock()
	whose := make(map[*conn]string, len(h.conns))
	for n := range h.conns {
		whose[n] = n.principal
	}
	h.mu.Unlock()
	type holder struct {
		*conn
		kept int64
	}
	holders, sums := make(map[string][]holder), make(map[string]int64)
	var total int64
	for n, p := range whose {
		if kept := n.kept(); kept >= channelWindow {
			holders[p], sums[p] = append(holders[p], holder{n, kept}), sums[p]+kept
			total += kept
		}
	}
	if total < h.limits.Memory/2 {
		return
	}
	for excess > 0 && len(sums) > 0 {
		worst := ""
		for p, sum := range sums {
			if sum > sums[worst] {
				worst = p
			}
		}
		list := holders[worst]
		slices.SortFunc(list, func(a, b holder) int { return int(b.kept - a.kept) })
		ended := 0
		for _, n := range list {
			if excess <= 0 {
				break
			}
			n.Close()
			excess -= n.kept
			ended++
		}
		h.log.Warn("memory is short: connections ended that keep much of it unread", "principal", worst, "connections", ended, "bytes", sums[worst])
		delete(sums, worst)
	}
}

// kept is about how much a connection keeps in memory: what its client sent and nobody has read, and what its sandbox sends to channels that
// the client does not read.
func (c *conn) kept() int64 {
	unread := c.read.Load() - c.meter.delivered.Load() - c.wrote.Load()/acknowledged
	return max(0, unread) + c.meter.stuck(takesLittle)*channelWindow
}
