package sshd

import (
	"testing"
	"time"
)

// block makes f wait in a write until the test ends.
func block(t *testing.T, f *flow) {
	t.Helper()
	release, entered, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = f.write(func() (int, error) { close(entered); <-release; return 0, nil })
	}()
	<-entered
	t.Cleanup(func() { close(release); <-done })
}

func TestMeter(t *testing.T) {
	clock := time.Unix(1_800_000_000, 0)
	newFlow := func(m *meter, fromClient bool) (*flow, chan struct{}) {
		ended := make(chan struct{})
		return &flow{meter: m, client: fromClient, end: func() { close(ended) }}, ended
	}
	setup := func() *meter {
		m := newMeter(8 << 20)
		m.now = func() time.Time { return clock }
		return m
	}

	t.Run("the one that has waited longest goes", func(t *testing.T) {
		m := setup()
		old, oldEnded := newFlow(m, true)
		young, youngEnded := newFlow(m, true)
		block(t, old)
		clock = clock.Add(time.Second)
		block(t, young)
		if m.review(8 << 20) {
			t.Error("ended at the budget, not above it")
		}
		if !m.review(8<<20 + 1) {
			t.Error("not ended above the budget")
		}
		<-oldEnded
		select {
		case <-youngEnded:
			t.Error("the other one was ended too")
		default:
		}
	})
	t.Run("what was read does not count", func(t *testing.T) {
		m := setup()
		stuck, _ := newFlow(m, true)
		busy, _ := newFlow(m, true)
		block(t, stuck)
		for range 1000 {
			busy.read(32 << 10)
		}
		if m.review(1000 * 32 << 10) {
			t.Error("a busy channel counted against a stuck one")
		}
	})
	t.Run("what came before anybody waited does not count", func(t *testing.T) {
		m := setup()
		if m.review(1 << 40) {
			t.Error("ended something where nothing waits")
		}
		stuck, _ := newFlow(m, true)
		block(t, stuck)
		if m.review(1<<40 + 1<<20) {
			t.Error("ended for a megabyte")
		}
	})
	t.Run("output that nobody takes, after a while", func(t *testing.T) {
		m := setup()
		var ended []chan struct{}
		for range 5 { // of 2 MiB each
			f, e := newFlow(m, false)
			block(t, f)
			ended = append(ended, e)
			clock = clock.Add(time.Millisecond)
		}
		if m.review(0) {
			t.Error("a slow network was taken for a stuck one")
		}
		clock = clock.Add(stuckAfter)
		if !m.review(0) {
			t.Error("nothing was ended")
		}
		<-ended[0]
		if m.review(0) {
			t.Error("more were ended than needed")
		}
	})
}
