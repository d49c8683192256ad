package session

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestLogReads(t *testing.T) {
	var l log
	var want []byte
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		p := make([]byte, r.IntN(3000))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		want = append(want, p...)
		if end := l.append(p); end != uint64(len(want)) {
			t.Fatalf("end = %d, want %d", end, len(want))
		}
	}
	for off := 0; off < len(want); {
		p, err := l.at(uint64(off))
		if err != nil || len(p) == 0 {
			t.Fatalf("at(%d) = %d, %v", off, len(p), err)
		}
		if !bytes.Equal(p, want[off:off+len(p)]) {
			t.Fatalf("at(%d): other bytes", off)
		}
		off += 1 + r.IntN(len(p))
	}
	if p, err := l.at(uint64(len(want))); len(p) != 0 || err != nil {
		t.Errorf("at the end: %d, %v", len(p), err)
	}
}

func TestLogLags(t *testing.T) {
	var l log
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	for range 300 {
		l.append(chunk)
	}
	first, end := l.bounds()
	if want := uint64(300 * len(chunk)); end != want {
		t.Errorf("end = %d, want %d", end, want)
	}
	if kept := end - first; kept < logSize || kept > logSize+logChunk {
		t.Errorf("keeps %d bytes", kept)
	}
	var lagged *LaggedError
	if _, err := l.at(10); !errors.As(err, &lagged) || lagged.Missed != first-10 {
		t.Errorf("at(10) = %v, want %d missed", err, first-10)
	}
	if p, err := l.at(10 + lagged.Missed); err != nil ||
		!bytes.HasPrefix(p, []byte("0123456789abcdef")) {
		t.Errorf("after the gap: %q, %v", p[:min(len(p), 16)], err)
	}
}

func TestLogIdleIsSmall(t *testing.T) {
	var l log
	l.append([]byte("$ "))
	if got := cap(l.chunks[0]); got > 64 {
		t.Errorf("2 bytes take %d", got)
	}
}

func TestLogWaits(t *testing.T) {
	var l log
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var got []byte
			for len(got) < 10 {
				p, err := l.wait(t.Context(), uint64(len(got)))
				if err != nil {
					t.Error(err)
					return
				}
				got = append(got, p...)
			}
			if string(got) != "0123456789" {
				t.Errorf("got %q", got)
			}
		})
	}
	for i := range 10 {
		l.append([]byte{byte('0' + i)})
	}
	wg.Wait()

	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("over")
	cancel(cause)
	if _, err := l.wait(ctx, 10); !errors.Is(err, cause) {
		t.Errorf("wait with an ended context: %v", err)
	}
	l.close()
	if _, err := l.wait(t.Context(), 10); !errors.Is(err, errClosed) {
		t.Errorf("wait on a closed log: %v", err)
	}
}

func BenchmarkLogAppend(b *testing.B) {
	var l log
	chunk := make([]byte, 4096)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		l.append(chunk)
	}
}

func BenchmarkLogRead(b *testing.B) {
	var l log
	l.append(make([]byte, logSize))
	b.SetBytes(logChunk)
	b.ReportAllocs()
	off := uint64(0)
	for b.Loop() {
		p, _ := l.at(off)
		if off += uint64(len(p)); len(p) == 0 {
			off = 0
		}
	}
}
