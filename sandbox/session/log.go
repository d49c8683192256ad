package session

import (
	"context"
	"fmt"
	"sync"
)

const (
	logSize  = 8 << 20  // bytes of output that a session stores
	logChunk = 32 << 10 // size of the stored pieces
)

// LaggedError reports that the log no longer stores the bytes at the requested offset.
type LaggedError struct {
	// missing bytes; the log continues at the requested offset plus Missed
	Missed  uint64
	Private bool // they were printed in private mode
}

func (e *LaggedError) Error() string {
	return fmt.Sprintf("%d bytes of output are no longer kept", e.Missed)
}

// log is the output of a session by absolute offset. It stores the last 8 MiB. Appending never
// waits for readers. A reader is only an offset and needs no buffer, because appended bytes never
// change. The zero value is an empty log.
type log struct {
	mu     sync.Mutex
	chunks [][]byte      // guarded by mu; all but the last have logChunk bytes
	first  uint64        // guarded by mu; offset of chunks[0][0]
	end    uint64        // guarded by mu
	wake   chan struct{} // guarded by mu; closed at the next append; nil if nothing waits
	closed bool          // guarded by mu
	hidden bool          // guarded by mu; bytes after from are private
	from   uint64        // guarded by mu
	keeper keeper        // guarded by mu
	// guarded by mu; earlier private ranges, oldest first, within the stored log
	holes []hole
}

// hole is a range of the log that cannot be read.
type hole struct{ from, to uint64 }

// hide makes further bytes private: only all and wait read them.
func (l *log) hide() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hidden, l.from = true, l.end
}

// reveal ends hide: the private bytes become a hole of the returned length.
func (l *log) reveal() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.holes) > 0 && l.holes[0].to <= l.first {
		l.holes = l.holes[1:]
	}
	l.hidden = false
	if l.end > l.from {
		l.holes = append(l.holes, hole{l.from, l.end})
	}
	l.fireLocked()
	return l.end - l.from
}

// shown returns the end of the public bytes.
func (l *log) shown() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shownLocked()
}

func (l *log) shownLocked() uint64 {
	if l.hidden {
		return l.from
	}
	return l.end
}

// append adds p and returns the offset of its end.
func (l *log) append(p []byte) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(p) == 0 {
		return l.end
	}
	l.end += uint64(len(p))
	for len(p) > 0 {
		last := len(l.chunks) - 1
		if last < 0 || len(l.chunks[last]) == logChunk {
			var chunk []byte // the first chunk grows with its content
			if last >= 0 {
				chunk = make([]byte, 0, logChunk)
			}
			l.chunks = append(l.chunks, chunk)
			last++
		}
		n := min(len(p), logChunk-len(l.chunks[last]))
		l.chunks[last] = append(l.chunks[last], p[:n]...)
		p = p[n:]
	}
	for len(l.chunks) > logSize/logChunk+1 {
		l.chunks[0] = nil
		l.chunks = l.chunks[1:]
		l.first += logChunk
	}
	l.fireLocked()
	return l.end
}

func (l *log) fireLocked() {
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// close closes the log: at its end, readers get errClosed instead of waiting.
func (l *log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.fireLocked()
}

// bounds returns the offsets of the oldest stored byte and of the end.
func (l *log) bounds() (first, end uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first, l.end
}

// at returns a piece of the bytes from offset off, without waiting; none at the end of the public
// bytes. Callers must not change them. The error is *LaggedError if they are private or no longer
// stored.
func (l *log) at(off uint64) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := l.shownLocked()
	for _, h := range l.holes {
		switch {
		case off >= h.to:
		case off >= h.from && off >= l.first:
			return nil, &LaggedError{Missed: h.to - off, Private: true}
		default:
			until = min(until, max(h.from, l.first))
		}
	}
	if off >= until && off >= l.first {
		return nil, nil
	}
	p, err := l.atLocked(off)
	if err != nil {
		return nil, err
	}
	return p[:min(uint64(len(p)), until-off)], nil
}

// all is at with private bytes.
func (l *log) all(off uint64) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.atLocked(off)
}

func (l *log) atLocked(off uint64) ([]byte, error) {
	switch {
	case off < l.first:
		return nil, &LaggedError{Missed: l.first - off}
	case off >= l.end:
		return nil, nil
	}
	i := off - l.first
	chunk := l.chunks[i/logChunk][i%logChunk:]
	return chunk[:len(chunk):len(chunk)], nil
}

// wait is all, but waits for more bytes at the end. It returns errClosed if the log is closed, or
// the cause of ctx.
func (l *log) wait(ctx context.Context, off uint64) ([]byte, error) {
	for {
		l.mu.Lock()
		p, err := l.atLocked(off)
		if len(p) > 0 || err != nil {
			l.mu.Unlock()
			return p, err
		}
		if l.closed {
			l.mu.Unlock()
			return nil, errClosed
		}
		wake := l.waitLocked()
		l.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// changed returns a channel that is closed once the log is longer than end.
func (l *log) changed(end uint64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end > end || l.closed {
		return closedChan
	}
	return l.waitLocked()
}

// grown returns a channel that is closed once there may be public bytes after end.
func (l *log) grown(end uint64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shownLocked() > end || l.closed {
		return closedChan
	}
	return l.waitLocked()
}

func (l *log) waitLocked() <-chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
