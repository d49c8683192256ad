package sshconn

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// channelWindow is how many bytes one side of a channel may send before they are read: the
	// library's fixed window.
	channelWindow = 2 << 20
	// stuckAfter is how long a write must have waited before its channel may be ended to free
	// memory. On a slow network many writes wait, but none for this long.
	stuckAfter = 10 * time.Second
	// takesLittle is how long a write to the other side must have waited before Kept counts its
	// channel as full.
	takesLittle = time.Second
	// packetCost is about the overhead of a packet on the network, in bytes.
	packetCost = 64
	// acknowledged is how many sent bytes cause one received byte, for window adjustments.
	acknowledged = 512
	// reviewEvery is how many bytes may arrive between two reviews.
	reviewEvery = 1 << 20
)

// Meter limits the memory of one connection: received bytes of channels that are not read. The
// library does not report its buffers. So the meter compares bytes received from the network with
// bytes read from channels, since a time at which no channel waited and the buffers were empty. Its
// methods are safe for concurrent use.
type Meter struct {
	budget int64
	now    func() time.Time

	received  atomic.Int64 // bytes from the network
	sent      atomic.Int64 // bytes to it
	delivered atomic.Int64 // bytes read from channels, with the overhead of packets
	reviewed  atomic.Int64 // received at the last review that Received made

	mu      sync.Mutex
	empty   int64               // guarded by mu; received − delivered when no write waited
	waiting map[*Flow]time.Time // guarded by mu; flows in a write, since when
}

// NewMeter returns a Meter of a connection that may hold budget bytes.
func NewMeter(budget int64) *Meter {
	return &Meter{budget: budget, now: time.Now, waiting: make(map[*Flow]time.Time)}
}

// AddReceived counts n bytes received from the network, and calls Review now and then.
func (m *Meter) AddReceived(n int) {
	total := m.received.Add(int64(n))
	if last := m.reviewed.Load(); total-last >= reviewEvery &&
		m.reviewed.CompareAndSwap(last, total) {
		m.Review()
	}
}

// AddSent counts n bytes sent to the network.
func (m *Meter) AddSent(n int) { m.sent.Add(int64(n)) }

// Received returns the number of bytes received from the network.
func (m *Meter) Received() int64 { return m.received.Load() }

// Kept returns about how many bytes the connection holds in memory: unread bytes of the other side,
// and bytes for channels that the other side does not read.
func (m *Meter) Kept() int64 {
	unread := m.received.Load() - m.delivered.Load() - m.sent.Load()/acknowledged
	return max(0, unread) + m.stuck(takesLittle)*channelWindow
}

// Source returns a reader of r, a channel without a Flow, that counts read bytes.
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

// Read counts n bytes read from the flow's source.
func (f *Flow) Read(n int) {
	if f.in {
		f.meter.delivered.Add(int64(n) + packetCost)
	}
}

// Write writes p to w, and records how long it waits.
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

// Passed returns how many bytes Write has written, and whether a Write is running.
func (f *Flow) Passed() (n int64, writing bool) { return f.passed.Load(), f.writing.Load() }

// Review ends the channel whose write has waited longest if the connection exceeds its budget. It
// reports whether it ended one.
func (m *Meter) Review() bool {
	worst := m.worst(m.received.Load())
	if worst == nil {
		return false
	}
	// In a goroutine: the caller may be the reader of the network, and ending a channel writes to
	// the network.
	go worst.end() // ends with the channel's last message
	return true
}

// stuck returns how many writes to the other side have waited that long.
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
		// Ending it frees its memory.
		m.empty += min(channelWindow, held-m.empty)
		delete(m.waiting, in)
		return in
	case outs*channelWindow > m.budget:
		delete(m.waiting, out)
		return out
	}
	return nil
}
