package live

import (
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func BenchmarkReplicaAdd(b *testing.B) {
	var r replica
	p := make([]byte, 1000)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		r.add(p, true)
	}
}

// One event wakes many readers: what output costs with a hundred of them.
func BenchmarkOutputWithReaders(b *testing.B) {
	l := newSession(newSessions(b, nil),
		wire.SessionInfo{Name: "main", Created: time.Now().UnixMilli()}, nil)
	done := make(chan struct{})
	for range 100 {
		go func() {
			defer func() { done <- struct{}{} }()
			buf := make([]byte, 4096)
			for off := uint64(0); ; {
				n, err := l.ReadAt(b.Context(), off, buf)
				if err != nil {
					return
				}
				off += uint64(n)
			}
		}()
	}
	p := make([]byte, 80)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		l.mu.Lock()
		l.replica.add(p, false)
		l.changeLocked()
		l.mu.Unlock()
	}
	l.mu.Lock()
	l.ended = true
	l.changeLocked()
	l.mu.Unlock()
	for range 100 {
		<-done
	}
}

// The replica keeps a little of what the record has, and much of what nothing else has.
func TestReplicaKeepsWhatNothingElseHas(t *testing.T) {
	var r replica
	chunk := make([]byte, 10_000)
	add := func(n int, recorded bool) {
		for range n {
			for i := range chunk {
				chunk[i] = byte((r.end + uint64(i)) % 251)
			}
			r.add(chunk, recorded)
		}
	}
	check := func(what string, least, most uint64) {
		t.Helper()
		if kept := r.end - r.start; kept < least || kept > most {
			t.Errorf("%s: %d bytes kept, want %d to %d", what, kept, least, most)
		}
		buf := make([]byte, 777)
		for off := r.start; off < r.end; {
			n := r.read(buf, off)
			if n == 0 {
				t.Fatalf("%s: nothing at %d of %d to %d", what, off, r.start, r.end)
			}
			for i := range n {
				if buf[i] != byte((off+uint64(i))%251) {
					t.Fatalf("%s: wrong byte at %d", what, off+uint64(i))
				}
			}
			off += uint64(n)
		}
		if r.read(buf, r.end) != 0 || r.start > 0 && r.read(buf, r.start-1) != 0 {
			t.Errorf("%s: something outside", what)
		}
	}
	add(100, true)
	check("recorded", keepHot-chunkSize, keepHot+chunkSize)
	add(1000, false)
	check("not recorded", keepCold-chunkSize, keepCold+chunkSize)
	add(2000, true)
	check("recorded again", keepHot-chunkSize, keepHot+chunkSize)
	r.shrink()
	check("idle", keepIdle, keepIdle)
	add(1, false)
	r.shrink()
	check("idle and not recorded", keepIdle+10_000, keepIdle+10_000)
	add(100, true)
	r.skip(r.end + 5)
	check("after a gap", 0, 0)
	add(1, true)
	check("after the gap", 10_000, 10_000)
	lagged := r.lagged(&record.GapError{From: 1, To: r.end, Why: "x"})
	if lagged.To != r.start {
		t.Errorf("a gap of the record ends at %d, want %d where the replica begins", lagged.To,
			r.start)
	}
}
