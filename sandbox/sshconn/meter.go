package sshconn

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// channelWindow is how much one side of a channel may send before it is read: the library's
	// window, which cannot be chosen.
	channelWindow = 2 << 20
	// stuckAfter is how long one write has waited when its channel may be ended for what it keeps
	// in memory. A slow network makes many writes wait, none of them for this long.
	stuckAfter = 10 * time.Second
	// takesLittle is how long a write to the other side has waited when Kept counts its channel as full.
	takesLittle = time.Second
	// packetCost is about what a packet takes on the network beside its data.
	packetCost = 64
	// acknowledged is how many bytes that were sent make the other side send one beside its data:
	// how much more it has room for.
	acknowledged = 512
	// reviewEvery is how many bytes may arrive between two reviews.
	reviewEvery = 1 << 20
)

// Meter bounds what one connection keeps in memory: bytes that arrived for a channel and that
// nobody takes. The library reports nothing about its buffers, so the meter compares what came in
// by the network with what was read from the channels, since a moment at which no channel waited:
// then the buffers were empty. Its methods may be called at once.
type Meter struct {
	budget int64
	now    func() time.Time

	received  atomic.Int64 // bytes from the network
	sent      atomic.Int64 // bytes to it
	delivered atomic.Int64 // bytes that were read from channels, with what their packets cost
	reviewed  atomic.Int64 // received at the last review that Received made

	mu      sync.Mutex
	empty   int64               // guarded by mu; received − delivered when no write waited
	waiting map[*Flow]time.Time // guarded by mu; flows in a write, since when
}

// NewMeter returns a Meter of a connection that may keep so many bytes.
func NewMeter(budget int64) *Meter {
	return &Meter{budget: budget, now: time.Now, waiting: make(map[*Flow]time.Time)}
}

// AddReceived notes that n bytes came in by the network, and reviews now and then.
func (m *Meter) AddReceived(n int) {
	total := m.received.Add(int64(n))
	if last := m.reviewed.Load(); total-last >= reviewEvery && m.reviewed.CompareAndSwap(last, total) {
		m.Review()
	}
}

// AddSent notes that n bytes went out by the network.
func (m *Meter) AddSent(n int) { m.sent.Add(int64(n)) }

// Received is how many bytes came in by the network.
func (m *Meter) Received() int64 { return m.received.Load() }

// Kept is about how many bytes the connection keeps in memory: what the other side sent and nobody
// has read, and what is on its way to channels that the other side does not read.
func (m *Meter) Kept() int64 {
	unread := m.received.Load() - m.delivered.Load() - m.sent.Load()/acknowledged
	return max(0, unread) + m.stuck(takesLittle)*channelWindow
}

// Source returns r, a channel of the connection without a Flow, with what is read from it noted.
func (m *Meter) Source(r io.Reader) io.Reader { return metered{r, m} }

type metered struct {
	io.Reader
	meter *Meter
}

func (r metered) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.meter.delivered.Add(int64(n) + packetCost)
	return n, err
}

// Flow is one direction of one relayed channel.
type Flow struct {
	meter *Meter
	in    bool
	end   func()

	passed  atomic.Int64
	writing atomic.Bool
}

// In returns the flow of a channel that comes from the connection. end ends the channel.
func (m *Meter) In(end func()) *Flow { return &Flow{meter: m, in: true, end: end} }

// Out returns the flow of a channel that goes to the connection. end ends the channel.
func (m *Meter) Out(end func()) *Flow { return &Flow{meter: m, end: end} }

// Read notes that n bytes were read from the flow's source.
func (f *Flow) Read(n int) {
	if f.in {
		f.meter.delivered.Add(int64(n) + packetCost)
	}
}

// Write writes p to w and notes that it may have to wait.
func (f *Flow) Write(w io.Writer, p []byte) (int, error) {
	m := f.meter
	m.mu.Lock()
	m.waiting[f] = m.now()
	m.mu.Unlock()
	f.writing.Store(true)
	n, err := w.Write(p)
	f.writing.Store(false)
	f.passed.Add(int64(n))
	m.mu.Lock()
	delete(m.waiting, f)
	m.mu.Unlock()
	return n, err
}

// Passed is how many bytes Write has written so far, and whether it is writing more.
func (f *Flow) Passed() (n int64, writing bool) { return f.passed.Load(), f.writing.Load() }

// Review ends the channel whose write has waited longest if the connection keeps more than it may.
// It reports whether it ended one.
func (m *Meter) Review() bool {
	worst := m.worst(m.received.Load())
	if worst == nil {
		return false
	}
	// Not here: this may be the goroutine that reads from the network, and ending a channel writes to it.
	go worst.end() // ends with the channel's last message
	return true
}

// stuck is how many writes to the other side have waited for so long.
func (m *Meter) stuck(since time.Duration) (n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for f, began := range m.waiting {
		if !f.in && m.now().Sub(began) >= since {
			n++
		}
	}
	return n
}

func (m *Meter) worst(received int64) *Flow {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := received - m.delivered.Load()
	var in, out *Flow
	var outs int64
	for f, since := range m.waiting {
		switch {
		case f.in:
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
