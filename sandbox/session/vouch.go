package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// vouchTime is how long to wait until a shell that reported its prompt is seen reading. On a busy
// machine that can take long.
const vouchTime = time.Second

// offspring is the state of a shell's children at one time.
type offspring struct {
	shell int // its process ID
	ended uint64
	live  bool
	known bool
}

// offspring returns the state of the children of the process shell.
func (c *console) offspring(shell int) (o offspring) {
	if p, ok := c.term.(Parent); ok {
		var err error
		o.shell = shell
		o.ended, o.live, err = p.Children(shell)
		o.known = err == nil
	}
	return o
}

// vouched reports whether the shell is at its prompt after a command, by more evidence than marks.
// Either only the shell has run since before, or it reads at the prompt, after its last output. A
// program that knows the shell's secret can print the end of a command. The shell's later marks
// then contradict it, see marks.Parser.Forged.
func (f *call) vouched(ctx context.Context, c *console, before offspring) bool {
	s := f.s
	s.mu.Lock()
	shell, relayed := c.stack.pidLocked(), c.relayed
	s.mu.Unlock()
	if c.local == nil || relayed || s.without(wire.BasisProcess) {
		return false
	}
	now := c.offspring(shell)
	if before.known && now == before && !now.live {
		return true
	}
	for until := time.Now().Add(vouchTime); time.Now().Before(until); {
		facts, err := s.probe(ctx, c)
		s.mu.Lock()
		left := c != s.console || s.track.Phase() != wire.PhasePrompt
		s.mu.Unlock()
		if err != nil || left || facts.Pending { // the shell continues with type-ahead
			return false
		}
		reads := (facts.Blocked || facts.Listens) && facts.ShellIsForeground &&
			facts.Pid == c.stack.pid()
		if reads && !c.unread() {
			return true
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return false
		}
	}
	return false
}
