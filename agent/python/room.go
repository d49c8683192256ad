package python

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// Limits of the memory for data from sandboxes, in the whole process and for each Interpreter. A
// message counts twice: as it arrived, and as it is passed on. A message without memory waits,
// which blocks its kernel. After waitRoom it is dropped and counted, like a message that is too
// large.
const (
	maxHeld  = 256 << 20
	maxOwn   = 96 << 20 // of one Interpreter: a message of maxMessage and smaller ones
	maxFree  = 64 << 10 // bytes of a message, and of the output of a call, that do not count
	copies   = 2
	waitRoom = 15 * time.Second
)

// process is the memory limit of this process.
var process = semaphore.NewWeighted(maxHeld)

// opening limits the process to decoding one large message at a time, which needs several times its
// size.
var opening = semaphore.NewWeighted(1)

// room is the memory limit of an Interpreter, within that of the process.
type room struct {
	own, all *semaphore.Weighted
	patience time.Duration
}

func newRoom(all *semaphore.Weighted) *room {
	return &room{own: semaphore.NewWeighted(maxOwn), all: all, patience: waitRoom}
}

// place is a reservation in a room. It is not safe for concurrent use. The zero value has no limit.
type place struct {
	of   *room
	held int64
}

// grow extends the reservation to n bytes. It waits until ctx ends or the room's patience is over,
// and reports success.
func (p *place) grow(ctx context.Context, n int64) bool {
	more := n - p.held
	if p.of == nil || more <= 0 {
		return true
	}
	if p.of.try(more) {
		p.held = n
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, p.of.patience)
	defer cancel()
	if p.of.own.Acquire(ctx, more) != nil {
		return false
	}
	if p.of.all.Acquire(ctx, more) != nil {
		p.of.own.Release(more)
		return false
	}
	p.held = n
	return true
}

// try is grow without waiting.
func (p *place) try(n int64) bool {
	more := n - p.held
	if p.of != nil && more > 0 {
		if !p.of.try(more) {
			return false
		}
		p.held = n
	}
	return true
}

func (r *room) try(n int64) bool {
	if !r.own.TryAcquire(n) {
		return false
	}
	if !r.all.TryAcquire(n) {
		r.own.Release(n)
		return false
	}
	return true
}

// leave releases the reservation.
func (p *place) leave() {
	if p.held > 0 {
		p.of.own.Release(p.held)
		p.of.all.Release(p.held)
		p.held = 0
	}
}
