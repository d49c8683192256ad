package pool

import (
	"slices"
	"testing"
	"time"
)

var (
	now   = time.Unix(1000, 0)
	plain = Kind[string]{Key: "base", Image: "base", Owner: "~"}
	used  = Kind[string]{Key: "python", Image: "python", Use: "calls", Owner: "alice"}
)

func every[T any](T) bool { return true }

// A member is given once, to a permitted owner, and replaced a moment later.
func TestTake(t *testing.T) {
	p := New[int, string]()
	p.Add(plain, 2)
	p.Keep(used, 1, now.Add(time.Hour))
	for m, k := range map[int]Kind[string]{1: plain, 2: plain, 3: used} {
		if !p.Put(m, k.Key, k.Owner, true) {
			t.Fatalf("no room for %d", m)
		}
	}
	if p.Put(4, plain.Key, plain.Owner, true) || p.Put(5, "other", plain.Owner, true) {
		t.Error("there is room for one too many, or of another kind")
	}
	if m, ok := p.Take(used.Key, "bob", now, every[int]); ok {
		t.Errorf("bob gets %d, which is kept for alice", m)
	}
	if m, ok := p.Take(used.Key, "alice", now, every[int]); !ok || m != 3 {
		t.Errorf("alice gets %d, %v", m, ok)
	}
	if _, ok := p.Take(plain.Key, "bob", now, func(int) bool { return false }); ok {
		t.Error("a member that is not ready is given")
	}
	got := map[int]bool{}
	for range 2 {
		m, ok := p.Take(plain.Key, "bob", now, every[int])
		got[m] = ok
	}
	if m, ok := p.Take(plain.Key, "bob", now, every[int]); ok || !got[1] || !got[2] {
		t.Errorf("given %v, and then %d", got, m)
	}
	if _, due, wait := p.Due(now, 9, "", 4); due || wait != refillDelay {
		t.Errorf("right after a claim: due %v, wait %v", due, wait)
	}
	if k, due, _ := p.Due(now.Add(refillDelay), 9, "", 4); !due || !k.is(plain) {
		t.Errorf("later: %+v, due %v", k, due)
	}
}

// Failed boots are repeated with growing delays, and their error is shown until one succeeds.
func TestBootsThatFail(t *testing.T) {
	p := New[int, string]()
	p.Add(plain, 1)
	at := now
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		failed, again := p.Booted(plain, "no image", at)
		if failed != i || again.Sub(at) != want {
			t.Errorf("failure %d: %d before it, again after %v", i, failed, again.Sub(at))
		}
		if _, due, _ := p.Due(again.Add(-1), 9, "", 4); due {
			t.Error("due before its time")
		}
		at = again
	}
	if i := p.Info(every[int]); i[0].Trouble != "no image" || i[0].Ready != 0 || i[0].Owner != "" {
		t.Errorf("info %+v", i)
	}
	if failed, _ := p.Booted(plain, "", at); failed != 3 {
		t.Errorf("%d failures before it", failed)
	}
	if _, due, _ := p.Due(at, 9, "", 4); !due || p.Info(every[int])[0].Trouble != "" {
		t.Error("a successful boot leaves trouble behind")
	}
}

// Requested sandboxes have priority: members beyond room are surplus, and nothing is booted while
// requests wait for half of the slots.
func TestRoom(t *testing.T) {
	p := New[int, string]()
	p.Add(plain, 3)
	for m := range 3 {
		p.Put(m, plain.Key, plain.Owner, true)
	}
	if s := p.Surplus(now, 3); len(s) != 0 {
		t.Errorf("surplus %v", s)
	}
	if s := p.Surplus(now, 1); !slices.Equal(s, []int{1, 2}) {
		t.Errorf("surplus %v, want the newest two", s)
	}
	p.Drop(1)
	if _, due, _ := p.Due(now, 2, "total.running", 4); due || p.Info(every[int])[0].Trouble == "" {
		t.Error("a member beyond the room is due, or Info has no trouble")
	}
	done := p.Waiting()
	two := p.Waiting()
	if _, due, _ := p.Due(now, 9, "", 4); due {
		t.Error("it is due while people wait")
	}
	two()
	if _, due, _ := p.Due(now, 9, "", 4); !due {
		t.Error("it is not due when they have gone")
	}
	done()
	p.Rest(0, "it wrote too much", now)
	if _, due, wait := p.Due(now, 9, "", 4); due || wait != lastRefill {
		t.Error("its kind is not left alone")
	}
	p.Drain()
	if s := p.Surplus(now, 9); len(s) != 2 {
		t.Errorf("drained, %v are surplus", s)
	}
}

// Members for a use are removed when its time ends, when fewer are wanted, and when they are to be
// made differently.
func TestKeep(t *testing.T) {
	p := New[int, string]()
	p.Keep(used, 2, now.Add(time.Minute))
	p.Put(1, used.Key, used.Owner, true)
	p.Put(2, used.Key, used.Owner, true)
	p.Keep(used, 1, now.Add(time.Minute))
	if s := p.Surplus(now, 9); !slices.Equal(s, []int{2}) {
		t.Errorf("of two, one is kept: surplus %v", s)
	}
	p.Drop(2)
	other := used
	other.Key = "python with more"
	p.Keep(other, 1, now.Add(time.Minute))
	if s := p.Surplus(now, 9); !slices.Equal(s, []int{1}) {
		t.Errorf("made otherwise: surplus %v", s)
	}
	p.Drop(1)
	p.Put(3, other.Key, other.Owner, true)
	if s := p.Surplus(now.Add(time.Hour), 9); !slices.Equal(s, []int{3}) {
		t.Errorf("its time is over: surplus %v", s)
	}
	p.Drop(3)
	p.Surplus(now.Add(time.Hour), 9)
	if i := p.Info(every[int]); len(i) != 0 {
		t.Errorf("left %+v", i)
	}
}

// For any order of calls, no member is given twice, and there are never more members than intended.
func FuzzPool(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0, 0, 1, 1, 4, 5, 6})
	f.Fuzz(func(t *testing.T, script []byte) {
		p := New[int, string]()
		p.Add(plain, 3)
		at, next := now, 0
		given := map[int]bool{}
		for _, step := range script[:min(len(script), 300)] {
			at = at.Add(time.Duration(step) * time.Millisecond)
			switch step % 7 {
			case 0, 1:
				if k, due, _ := p.Due(at, int(step), "", 4); due {
					next++
					p.Put(next, k.Key, k.Owner, true)
					p.Booted(k, "", at)
				}
			case 2:
				if m, ok := p.Take(plain.Key, "alice", at, every[int]); ok {
					if given[m] {
						t.Fatalf("%d is given twice", m)
					}
					given[m] = true
				}
			case 3:
				for _, m := range p.Surplus(at, int(step)%5) {
					if given[m] {
						t.Fatalf("%d was given, and is surplus", m)
					}
					p.Drop(m)
				}
			case 4:
				p.Booted(plain, "no", at)
			case 5:
				p.Keep(used, int(step)%3, at.Add(time.Second))
			case 6:
				p.Rest(next, "why", at)
			}
			if n := len(p.Members(every[Kind[string]])); n > 3+2 {
				t.Fatalf("%d members", n)
			}
		}
	})
}
