package session

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// slow is a stream whose client reads nothing until gate is closed.
type slow struct {
	*wire.Client
	served chan error
	gate   chan struct{}
	got    atomic.Int64  // bytes of output
	lagged atomic.Uint64 // missing bytes
}

func (m *memorySet) slow(a wire.Attach) *slow {
	m.t.Helper()
	near, far := pipe()
	s := &slow{served: make(chan error, 1), gate: make(chan struct{})}
	go func() { s.served <- m.Serve(context.Background(), far, true) }()
	c, err := wire.Open(m.t.Context(), near, a, wire.Handler{
		Output: func(_ uint64, p []byte) {
			<-s.gate
			s.got.Add(int64(len(p)))
		},
		Event: func(e wire.Event) { s.lagged.Add(e.Missed) },
	})
	if err != nil {
		m.t.Fatal(err)
	}
	s.Client = c
	return s
}

func (s *slow) leave() {
	s.Client.Close()
	<-s.served
}

// flood prints n pieces of 64 KiB. It returns a channel that is closed when the terminal has
// accepted them all.
func flood(m *memory, n int) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		piece := strings.Repeat("0123456789abcdef", 4<<10)
		for range n {
			select {
			case m.out <- []byte(piece):
			case <-m.end:
				return
			}
		}
	}()
	return done
}

func over(done <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-done:
		return true
	default:
		return false
	}
}

func TestKeeperLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemorySet(t, Options{})
		defer m.close()
		s := m.slow(
			wire.Attach{Session: "main", Create: true, Keep: true, Party: watcher("daemon")},
		)
		defer s.leave()
		const pieces = 4 * logSize / (64 << 10)
		done := flood(m.last(), pieces)
		if over(done) {
			t.Error("the terminal ran away from the stream that keeps its log")
		}
		time.Sleep(keeperPatience / 2)
		close(s.gate)
		if !over(done) {
			t.Error("the terminal still waits for a stream that takes everything")
		}
		if got := s.got.Load(); got != pieces*64<<10 || s.lagged.Load() > 0 {
			t.Errorf("got %d bytes of %d, missed %d", got, pieces*64<<10, s.lagged.Load())
		}
	})
}

func TestKeeperThatIsStuck(t *testing.T) {
	for name, a := range map[string]wire.Attach{
		"keeps the log":    {Keep: true, Party: watcher("daemon")},
		"only reads it":    {Party: watcher("daemon")},
		"and goes in time": {Keep: true, Party: watcher("daemon")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemorySet(t, Options{})
				defer m.close()
				a.Session, a.Create = "main", true
				s := m.slow(a)
				done := flood(m.last(), 4*logSize/(64<<10))
				waits := !over(done)
				if waits != a.Keep {
					t.Errorf("the terminal waits: %v, want %v", waits, a.Keep)
				}
				if name == "and goes in time" {
					go s.Client.Close() // it waits for the handler
				} else {
					time.Sleep(keeperPatience + time.Second)
				}
				if !over(done) {
					t.Error("the terminal waits for a stream that takes nothing")
				}
				close(s.gate)
				s.leave()
			})
		})
	}
}
