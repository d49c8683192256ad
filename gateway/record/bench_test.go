package record

import (
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func BenchmarkAppend(b *testing.B) {
	for name, size := range map[string]int{"keystroke": 1, "line": 80, "bulk": 32 << 10} {
		b.Run(name, func(b *testing.B) {
			w, err := Create(filepath.Join(b.TempDir(), "main"), Options{Quota: -1})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Append(w.End(), p); err != nil {
					b.Fatal(err)
				}
				if w.End() > 1<<30 { // a test's disk is small
					b.StopTimer()
					if err := w.Finish(wire.State{}); err != nil {
						b.Fatal(err)
					}
					if w, err = Create(filepath.Join(b.TempDir(), "main"),
						Options{Quota: -1}); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			}
		})
	}
}

func BenchmarkReadAt(b *testing.B) {
	for name, size := range map[string]int{"line": 80, "bulk": 32 << 10} {
		b.Run(name, func(b *testing.B) {
			w, err := Create(filepath.Join(b.TempDir(), "main"), Options{Quota: -1})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			const total = 1 << 20
			if err := w.Append(0, make([]byte, total)); err != nil {
				b.Fatal(err)
			}
			p := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if n, err := w.ReadAt(p, uint64(i*size%(total-size))); err != nil || n != size {
					b.Fatalf("read %d bytes of %d: %v", n, size, err)
				}
			}
		})
	}
}
