package screen

import (
	"math/rand/v2"
	"testing"
)

// TestSnapshot checks that a screen restored at any byte of any output behaves like the original.
func TestSnapshot(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		cols, rows := 1+r.IntN(60), 1+r.IntN(20)
		in := hostile(r, 200, cols, rows) + program(r, 200, cols, rows) + stream(r, 200, cols, rows)
		whole := New(Options{Cols: cols, Rows: rows})
		restored := New(Options{Cols: cols, Rows: rows})
		for len(in) > 0 {
			n := min(len(in), 1+r.IntN(400))
			whole.Write([]byte(in[:n]))
			restored.Write([]byte(in[:n]))
			in = in[n:]
			if r.IntN(4) == 0 {
				c, l := 1+r.IntN(60), 1+r.IntN(20)
				whole.Resize(c, l)
				restored.Resize(c, l)
			}
			p := restored.Snapshot()
			var err error
			if restored, err = Restore(p, 0); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if again := restored.Snapshot(); len(again) < len(p)-100 {
				t.Fatalf("seed %d: the snapshot of a restored screen has %d bytes, its own %d",
					seed, len(again), len(p))
			}
			if got, want := dump(restored), dump(whole); got != want {
				t.Fatalf("seed %d: restored:\n%s\nwant:\n%s", seed, got, want)
			}
			check(t, restored)
		}
	}
}

// FuzzRestore checks that other bytes than a snapshot return an error, or a screen that works.
func FuzzRestore(f *testing.F) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := New(Options{Cols: 20, Rows: 5})
		s.Write([]byte(hostile(r, 50, 20, 5)))
		f.Add(s.Snapshot(), []byte("abc\x1b[2;3H\x1b[L"))
	}
	f.Add([]byte{1, 255, 255, 255, 255, 15}, []byte("x"))
	f.Fuzz(func(t *testing.T, p, more []byte) {
		s, err := Restore(p, 0)
		if err != nil {
			return
		}
		s.Write(more)
		s.Resize(33, 7)
		s.Write(more)
		_ = s.Text()
		for y := range 7 {
			s.Line(y)
		}
	})
}
