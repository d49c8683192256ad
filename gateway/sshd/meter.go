package sshd

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// channelWindow is how much one side of a channel may send before it is read: the library's window, which it does not let
// us choose.
const channelWindow = 2 << 20

// stuckAfter is how long one write must have waited until its channel may be ended for what it keeps in memory. A slow
// network makes many writes wait, none of them for this long.
const stuckAfter = 10 * time.Second

// meter bounds what one client connection keeps in memory: bytes that arrived for a channel and that nobody takes. The
// library tells nothing about its buffers, so the meter compares what came in by the network with what was read from the
// channels, from a moment on at which no channel was waiting: then the buffers were empty.
type meter struct {
	budget int64
	now    func() time.Time

	delivered atomic.Int64 // bytes that were read from the client's channels, with what their packets cost

	mu      sync.Mutex
	empty   int64               // guarded by mu; received − delivered when no write waited
	waiting map[*flow]time.Time // guarded by mu; flows in a write, since when
}

// flow is one direction of one relayed channel.
type flow struct {
	meter  *meter
	client bool   // from the client
	end    func() // ends the channel; must not block

	bytes   atomic.Int64 // passed on
	writing atomic.Bool
}

func newMeter(budget int64) *meter {
	return &meter{budget: budget, now: time.Now, waiting: make(map[*flow]time.Time)}
}

// packetCost is about what a packet takes on the network beside its data.
const packetCost = 64

// read notes that n bytes were read from f's source.
func (f *flow) read(n int) {
	if f.client {
		f.meter.delivered.Add(int64(n) + packetCost)
	}
}

// write calls w and notes that it may have to wait.
func (f *flow) write(w func() (int, error)) (int, error) {
	m := f.meter
	m.mu.Lock()
	m.waiting[f] = m.now()
	m.mu.Unlock()
	f.writing.Store(true)
	n, err := w()
	f.writing.Store(false)
	f.bytes.Add(int64(n))
	m.mu.Lock()
	delete(m.waiting, f)
	m.mu.Unlock()
	return n, err
}

// review ends the channel whose write has waited longest if the connection keeps more than its budget. received is what
// came in by the network so far. It reports whether it ended one.
func (m *meter) review(received int64) bool {
	worst := m.worst(received)
	if worst == nil {
		return false
	}
	// Not here: this is the goroutine that reads from the network, and ending a channel writes to it.
	go worst.end()
	return true
}

// source returns r, a channel of the client that is not relayed, with what is read from it noted.
func (m *meter) source(r io.Reader) io.Reader { return metered{r, m} }

type metered struct {
	io.Reader
	meter *meter
}

func (r metered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.meter.delivered.Add(int64(n) + packetCost)
	return n, err
}

// stuck is how many writes to the client have waited for so long.
func (m *meter) stuck(since time.Duration) (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for f, began := range m.waiting {
		if !f.client && m.now().Sub(began) >= since {
			n++
		}
	}
	return n
}

func (m *meter) worst(received int64) *flow {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := received - m.delivered.Load()
	var in, out *flow
	var outs int64
	for f, since := range m.waiting {
		switch {
		case f.client:
			if in == nil || since.Before(m.waiting[in]) {
				in = f
			}
		case m.now().Sub(since) >= stuckAfter:
			outs++
			if out == nil || since.Before(m.waiting[out]) {
				out = f
			}
		}
	}
	if in == nil {
		m.empty = held
	}
	switch {
	case in != nil && held-m.empty > m.budget:
		// What it kept goes with it.
		m.empty += min(channelWindow, held-m.empty)
		delete(m.waiting, in)
		return in
	case outs*channelWindow > m.budget:
		delete(m.waiting, out)
		return out
	}
	return nil
}
