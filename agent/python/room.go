package python

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// What sandboxes send is held in memory of this process, which has room for so much of it: of all Interpreters together, and of each. A
// message counts twice, as it came and as it is passed on. What finds no room waits, and its kernel with it; when it has waited for long it
// is dropped and counted, as what is too large is.
const (
	maxHeld  = 256 << 20
	maxOwn   = 96 << 20 // of one Interpreter: a message of maxMessage, and smaller ones beside it
	maxFree  = 64 << 10 // bytes of a message, and of what a call keeps, that need no room
	copies   = 2
	waitRoom = 15 * time.Second
)

// process is the room of this process.
var process = semaphore.NewWeighted(maxHeld)

// opening lets one large message at a time be taken apart, in the whole process: for a moment that takes several times its size.
var opening = semaphore.NewWeighted(1)

// room is what an Interpreter may take of the process's.
type room struct {
	own, all *semaphore.Weighted
	patience time.Duration
}

func newRoom(all *semaphore.Weighted) *room {
	return &room{own: semaphore.NewWeighted(maxOwn), all: all, patience: waitRoom}
}

// place is some of a room, for one goroutine at a time. Its zero value is of a room without limits.
type place struct {
	of   *room
	held int64
}

// grow makes it n bytes, and waits for them until ctx ends or it has been long. It reports whether they are there.
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

// leave gives it back.
func (p *place) leave() {
	if p.held > 0 {
		p.of.own.Release(p.held)
		p.of.all.Release(p.held)
		p.held = 0
	}
}
