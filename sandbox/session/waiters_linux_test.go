package session_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestMonitor monitors a session's state. Questions are reported although no call waits for them,
// including one without output, and a running program is observed about once a second.
func TestMonitor(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	set := newProbedSet(t, "/bin/bash", counting{asked: &asked})
	c := agentClient(t, set)
	do(t, c, wire.Request{Verb: wire.VerbWait, For: []wire.Phase{wire.PhasePrompt}})
	w := newWatch()
	daemon := wire.Party{Name: "daemon", Kind: wire.Agent, Rights: wire.RightWatch, ID: "replica"}
	other := dial(t, set, wire.Attach{Session: "main", Party: &daemon}, w.handler())
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	done := make(chan error, 1)
	go func() {
		_, err := other.Request(ctx, wire.Request{Verb: wire.VerbMonitor})
		done <- err
	}()
	reported := func(phase wire.Phase, want wire.Want) func(string, []wire.Event) bool {
		return func(_ string, events []wire.Event) bool {
			for i := len(events) - 1; i >= 0; i-- {
				if st := events[i].State; st != nil {
					return st.Phase == phase && st.Want == want
				}
			}
			return false
		}
	}
	input := func(text string) {
		t.Helper()
		if err := c.Input(t.Context(), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	input("read -p 'Name? ' x; sleep 1; read -s y\n")
	w.until(t, "a question", reported(wire.PhaseWaiting, wire.WantLine))
	input("me\n")
	w.until(t, "one that comes without output", reported(wire.PhaseWaiting, wire.WantPassword))
	input("secret\n")
	w.until(t, "the prompt", reported(wire.PhasePrompt, ""))
	input("sleep 1000\n")
	w.until(t, "work", reported(wire.PhaseRunning, ""))
	<-time.After(3 * time.Second) // the first probes follow quickly
	before := asked.Load()
	<-time.After(5 * time.Second)
	if n := asked.Load() - before; n == 0 || n > 12 { // a probe every 64 ms would be 78
		t.Errorf("looked %d times in 5 s at a program that runs", n)
	}
	cancel(enough)
	if err := <-done; !errors.Is(err, enough) {
		t.Errorf("monitor ended with %v", err)
	}
	input("\x03")
	w.until(t, "the prompt", reported(wire.PhasePrompt, ""))
	input("read x\n")
	<-time.After(time.Second)
	before = asked.Load()
	<-time.After(2 * time.Second)
	if n := asked.Load() - before; n != 0 {
		t.Errorf("looked %d times for nobody", n)
	}
}
