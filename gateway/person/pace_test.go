package person

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	start := time.Unix(1000, 0)
	var p pace
	var done []time.Time
	now := start
	for range 200 { // always with something to do
		now = now.Add(p.wait(now))
		p.spend(now, paintTime)
		done = append(done, now)
	}
	for i := range done {
		n := 0
		for _, at := range done[i:] {
			if at.Sub(done[i]) < time.Second {
				n++
			}
		}
		if n > 30 {
			t.Fatalf("%d within a second", n)
		}
	}
	if got := done[paintBurst-1].Sub(start); got != 0 {
		t.Errorf("the first %d wait %v", paintBurst, got)
	}
	if got, want := done[len(done)-1].Sub(start),
		time.Duration(len(done)-paintBurst)*paintTime; got != want {
		t.Errorf("all take %v, want %v", got, want)
	}
	// Checks cost little, but not nothing: a program that prints without changing the screen is not
	// checked without end.
	looks := 0
	for p, now := (pace{}), start; now.Sub(start) < time.Second; looks++ {
		now = now.Add(p.wait(now))
		p.spend(now, lookTime)
	}
	if looks < 100 || looks > 1000 {
		t.Errorf("%d looks within a second", looks)
	}
	// Each typed key is shown immediately, but earns no more than that.
	typing, keyed := pace{}, start
	for i := range 1000 {
		keyed = keyed.Add(time.Millisecond)
		typing.spend(keyed, lookTime) // the key itself changes nothing yet
		typing.earn()
		if wait := typing.wait(keyed); wait > 0 {
			t.Fatalf("the echo of key %d waits %v", i, wait)
		}
		typing.spend(keyed, paintTime)
		typing.spend(keyed, lookTime)
	}
	for range 100 { // keys without an echo
		typing.earn()
	}
	for range paintBurst {
		typing.spend(keyed, paintTime)
	}
	if wait := typing.wait(keyed); wait != paintTime {
		t.Errorf("after a burst without an echo the next one waits %v, want %v", wait, paintTime)
	}
	// A pause earns no more than a burst.
	now = now.Add(time.Hour)
	for i := range paintBurst {
		if wait := p.wait(now); wait > 0 {
			t.Errorf("after a rest number %d waits %v", i, wait)
		}
		p.spend(now, paintTime)
	}
	if wait := p.wait(now); wait != paintTime {
		t.Errorf("the one after a burst waits %v, want %v", wait, paintTime)
	}
}
