package session

import (
	"context"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// vouchTime is how long a shell that has told its prompt is given to be seen reading at it. A
// machine at work may give it no processor for long.
const vouchTime = time.Second

// offspring is what is known of a shell's children at one moment.
type offspring struct {
	ended uint64
	live  bool
	known bool
}

func (c *console) offspring() (o offspring) {
	if p, ok := c.term.(Parent); ok {
		var err error
		o.ended, o.live, err = p.Children()
		o.known = err == nil
	}
	return o
}

// vouched reports whether more than marks says that the shell is at its prompt behind a command:
// that the shell alone has run since before, or that it is seen to read at the prompt, and so has
// printed all that it prints before. A program that has learnt the shell's secret can print what
// ends a command; what the shell itself prints behind it then contradicts that, see
// marks.Parser.Forged.
func (f *call) vouched(ctx context.Context, c *console, before offspring) bool {
	s := f.s
	if c.local == nil || s.without(wire.BasisProcess) {
		return false
	}
	if now := c.offspring(); before.known && now == before && !now.live {
		return true
	}
	for until := time.Now().Add(vouchTime); time.Now().Before(until); {
		facts, err := s.probe(ctx, c)
		s.mu.Lock()
		left := c != s.console || s.track.Phase() != wire.PhasePrompt
		s.mu.Unlock()
		if err != nil || left || facts.Pending { // the shell goes on with what was typed ahead
			return false
		}
		reads := (facts.Blocked || facts.Listens) && facts.ShellIsForeground && facts.Pid == c.local.TTY().SessionPID
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
