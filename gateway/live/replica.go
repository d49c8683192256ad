package live

import (
	"github.com/sandboxd/sandboxd/gateway/record"
)

const (
	chunkSize = 32 << 10
	keepHot   = 256 << 10 // bytes that the record has, too: readers at the end need no file
	keepIdle  = 4 << 10   // the same, of a session that has printed nothing for long
	keepCold  = 8 << 20   // bytes that are nowhere else
)

// replica is the end of a session's log in memory. Bytes that the record has are kept for speed
// alone; bytes that it lacks, because the disk is full or the quota is reached, because nothing
// else has them.
type replica struct {
	chunks [][]byte // in order; each but the last is full
	start  uint64   // offset of the first byte
	end    uint64
	free   []byte // a chunk for reuse
	cold   uint64 // bytes before this offset may be nowhere else
}

// add appends bytes at the end.
func (r *replica) add(p []byte, recorded bool) {
	r.end += uint64(len(p))
	if !recorded {
		r.cold = r.end
	}
	for len(p) > 0 {
		last := len(r.chunks) - 1
		if last < 0 || len(r.chunks[last]) == cap(r.chunks[last]) {
			// An idle session's replica is small: the first chunk grows, the others are made whole.
			next := r.free
			switch r.free = nil; {
			case next != nil:
			case last < 0:
				next = make([]byte, 0, min(chunkSize, max(512, len(p))))
			default:
				next = make([]byte, 0, chunkSize)
			}
			r.chunks = append(r.chunks, next)
			last++
		}
		n := min(len(p), cap(r.chunks[last])-len(r.chunks[last]))
		r.chunks[last] = append(r.chunks[last], p[:n]...)
		p = p[n:]
	}
	keep := uint64(keepHot)
	if r.cold > r.start {
		keep = keepCold
	}
	for r.end-r.start > keep && len(r.chunks) > 1 {
		r.start += uint64(len(r.chunks[0]))
		if cap(r.chunks[0]) == chunkSize {
			r.free = r.chunks[0][:0]
		}
		r.chunks[0] = nil
		r.chunks = r.chunks[1:]
	}
}

// shrink releases most of what the record has, too.
func (r *replica) shrink() {
	if r.cold > r.start || r.end-r.start <= keepIdle {
		return
	}
	last := make([]byte, keepIdle)
	r.read(last, r.end-keepIdle)
	*r = replica{chunks: [][]byte{last}, start: r.end - keepIdle, end: r.end}
}

// skip moves the end to offset to, over bytes that nobody has.
func (r *replica) skip(to uint64) {
	if to > r.end {
		*r = replica{start: to, end: to}
	}
}

// read copies what is here at off and returns how much.
func (r *replica) read(p []byte, off uint64) int {
	if off < r.start || off >= r.end {
		return 0
	}
	at := int(off - r.start)
	n := 0
	for _, c := range r.chunks {
		if at >= len(c) {
			at -= len(c)
			continue
		}
		n += copy(p[n:], c[at:])
		if n == len(p) {
			break
		}
		at = 0
	}
	return n
}

// lagged turns a gap of the record into what a reader gets, up to where the replica has bytes
// again.
func (r *replica) lagged(g *record.GapError) *LaggedError {
	to := g.To
	if r.start > g.From && r.start < to {
		to = r.start
	}
	return &LaggedError{From: g.From, To: to, Why: g.Why}
}
