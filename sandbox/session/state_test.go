package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestLatePromptEnd takes a prompt for complete whose last mark is late, as on a busy machine, and hands a command over: the
// mark that comes then is not the end of that command.
func TestLatePromptEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(NewSet(Options{}), "main", wire.Start{})
		c := &console{s: s, marked: true, phase: wire.PhaseRunning}
		s.console = c
		mark := func(m marks.Mark) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.markedLocked(c, m)
		}
		phase := func() wire.Phase {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.state.Phase
		}
		mark(marks.Mark{Kind: marks.PromptStart})
		time.Sleep(2 * promptPatience)
		if got := phase(); got != wire.PhasePrompt {
			t.Fatalf("without the prompt's end: %s, want prompt", got)
		}
		cmd := &command{op: "1"}
		s.mu.Lock()
		s.command = cmd
		s.setStateLocked(wire.State{Phase: wire.PhaseRunning})
		s.mu.Unlock()
		mark(marks.Mark{Kind: marks.PromptEnd})
		if cmd.over || phase() != wire.PhaseRunning {
			t.Fatalf("after the late end of the prompt: %s, command over: %v", phase(), cmd.over)
		}
		for _, m := range []marks.Mark{{Kind: marks.CommandStart, Run: true}, {Kind: marks.CommandEnd, Exit: 3}, {Kind: marks.PromptStart, Exit: 3}, {Kind: marks.PromptEnd}} {
			mark(m)
		}
		if !cmd.started || !cmd.over || cmd.exit == nil || *cmd.exit != 3 || phase() != wire.PhasePrompt {
			t.Errorf("after its own marks: %s, command %+v", phase(), cmd)
		}
	})
}
