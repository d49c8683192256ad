package gateway

import (
	"context"
	"sync"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// maxReading is how many principals may read through a record at once: each takes a core.
const maxReading = 4

// reading are the principals who read through a record.
type reading struct {
	mu  sync.Mutex
	who map[string]bool // guarded by mu
}

// begin counts a principal until done is called.
func (r *reading) begin(principal string) (done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.who[principal] || len(r.who) >= maxReading {
		return nil, &wire.Error{Code: wire.CodeLimitOps,
			Message: "too many records are being read", Hint: "try again"}
	}
	if r.who == nil {
		r.who = make(map[string]bool)
	}
	r.who[principal] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.who, principal)
	}, nil
}

// ReadThrough opens a record as OpenRecord does, for read to go through much of it, and closes it.
// A principal may do that once at a time, and four principals at once: else the error has code
// limit_ops.
func (s *Sessions) ReadThrough(ctx context.Context, p Principal, t wire.Target, run int,
	read func(*record.Reader) error) error {
	done, err := s.reading.begin(p.Name)
	if err != nil {
		return err
	}
	defer done()
	r, err := s.OpenRecord(ctx, p, t, run)
	if err != nil {
		return err
	}
	defer r.Close()
	return read(r)
}
