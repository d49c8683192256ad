package gateway

import (
	"testing"
	"time"

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
	l := newLive(&box{}, wire.SessionInfo{Name: "main", Created: time.Now().UnixMilli()}, nil)
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
