package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestCollectRarely(t *testing.T) {
	old := debug.SetGCPercent(100)
	defer debug.SetGCPercent(old)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		collectRarely(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()

	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	until := func(what string, want uint64, each func()) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			metrics.Read(percent)
			got := percent[0].Value.Uint64()
			if got == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the percentage is %d, want %d", what, got, want)
			}
			each()
			<-tick.C
		}
	}
	var sink []byte
	until("in a flood", rarely, func() { sink = make([]byte, 4<<20) })
	until("after it", 100, func() {})
	sink = nil
	// Collected, and given back: forced collections are counted.
	forced := []metrics.Sample{{Name: "/gc/cycles/forced:gc-cycles"}}
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		if metrics.Read(forced); forced[0].Value.Uint64() > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("what the flood left behind is never collected")
		}
	}
	_ = sink
}
