package sshconn

import (
	"testing"
	"time"
)

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// block makes f wait in a write until the test ends.
func block(t *testing.T, f *Flow) {
	t.Helper()
	release, entered, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = f.Write(
			writerFunc(
				func(p []byte) (int, error) { close(entered); <-release; return len(p), nil },
			),
			nil,
		)
	}()
	<-entered
	t.Cleanup(func() { close(release); <-done })
}

func TestMeter(t *testing.T) {
	clock := time.Unix(1_800_000_000, 0)
	newFlow := func(m *Meter, in bool) (*Flow, chan struct{}) {
		ended := make(chan struct{})
		flow := m.Out
		if in {
			flow = m.In
		}
		return flow(func() { close(ended) }), ended
	}
	// reviewed is Review when so much has been received.
	reviewed := func(m *Meter, received int64) bool {
		m.received.Store(received)
		return m.Review()
	}
	setup := func() *Meter {
		m := NewMeter(8 << 20)
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
		if reviewed(m, 8<<20) {
			t.Error("ended at the budget, not above it")
		}
		if !reviewed(m, 8<<20+1) {
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
			busy.Read(32 << 10)
		}
		if reviewed(m, 1000*32<<10) {
			t.Error("a busy channel counted against a stuck one")
		}
	})
	t.Run("what came before anybody waited does not count", func(t *testing.T) {
		m := setup()
		if reviewed(m, 1<<40) {
			t.Error("ended something where nothing waits")
		}
		stuck, _ := newFlow(m, true)
		block(t, stuck)
		if reviewed(m, 1<<40+1<<20) {
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
		if reviewed(m, 0) {
			t.Error("a slow network was taken for a stuck one")
		}
		clock = clock.Add(stuckAfter)
		if !reviewed(m, 0) {
			t.Error("nothing was ended")
		}
		<-ended[0]
		if reviewed(m, 0) {
			t.Error("more were ended than needed")
		}
	})
}
