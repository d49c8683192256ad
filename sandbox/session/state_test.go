package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestLatePromptEnd has a prompt count as complete before its last mark arrives, as on a busy
// machine, and runs a command. The late mark is not the end of that command.
func TestLatePromptEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession(NewSet(Options{}), "main", wire.Start{})
		c := &console{s: s, shell: &shell{marked: true, track: s.track}}
		c.stack.c = c
		s.console = c
		mark := func(m marks.Mark) {
			s.mu.Lock()
			defer s.mu.Unlock()
			c.markedLocked(m)
		}
		phase := func() wire.Phase {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.track.Phase()
		}
		mark(marks.Mark{Kind: marks.PromptStart})
		time.Sleep(100 * time.Millisecond)
		if got := phase(); got != wire.PhasePrompt {
			t.Fatalf("without the prompt's end: %s, want prompt", got)
		}
		cmd := &track.Command{Op: "1"}
		s.mu.Lock()
		s.reportLocked(c, s.track.Give(cmd, wire.BasisMark, s.momentLocked(c)))
		s.mu.Unlock()
		mark(marks.Mark{Kind: marks.PromptEnd})
		if cmd.Over || phase() != wire.PhaseRunning {
			t.Fatalf("after the late end of the prompt: %s, command over: %v", phase(), cmd.Over)
		}
		for _, m := range []marks.Mark{{Kind: marks.CommandStart, Run: true},
			{Kind: marks.CommandEnd, Exit: 3}, {Kind: marks.PromptStart, Exit: 3},
			{Kind: marks.PromptEnd}} {
			mark(m)
		}
		if !cmd.Started || !cmd.Over || cmd.Exit == nil || *cmd.Exit != 3 ||
			phase() != wire.PhasePrompt {
			t.Errorf("after its own marks: %s, command %+v", phase(), cmd)
		}
	})
}
