package record

import (
	"slices"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Command is one command of a session: one that was run, or typed at the shell's prompt.
type Command struct {
	Op      string     // of a run; empty if typed
	By      string     // who ran or typed it, as wire.Party.String
	Text    string     // of a run; empty if typed, and in private mode
	Line    [2]uint64  // where the log shows it, after the prompt
	From    uint64     // its output is [From, To)
	To      uint64     // the end of the log while it runs
	Started int64      // milliseconds of Unix time
	Ended   int64      // 0 while it runs
	Why     wire.Ended // how a run ended; done if typed; empty while it runs
	Exit    *int
}

// Typed reports whether the command was typed and not run.
func (c *Command) Typed() bool { return c.Op == "" && c.Text == "" }

// Commands returns the commands of the record, in order of their start.
func (r *Reader) Commands() []Command {
	all := slices.Clone(r.index.commands)
	for i := range all {
		if all[i].Ended == 0 {
			all[i].To = max(all[i].From, r.index.end)
		}
	}
	return all
}

// maxOpen bounds the commands that have begun and not ended, each in a shell inside the former.
const maxOpen = 32

// command records what an event says about commands. A guest may send any event.
func (x *index) command(e wire.Event) {
	line := [2]uint64{min(x.prompt, e.Offset), e.Offset}
	begin := func(c Command) {
		x.over = false
		x.open = append(x.open, len(x.commands))
		if len(x.open) > maxOpen {
			x.open = x.open[1:]
		}
		x.commands = append(x.commands, c)
	}
	// A shell runs one command after the other, but one may start a shell, and lasts while that
	// runs others.
	find := func(op string) (c *Command, done func()) {
		for i := len(x.open) - 1; i >= 0; i-- {
			if c := &x.commands[x.open[i]]; c.Op == op {
				return c, func() { x.open = slices.Delete(x.open, i, i+1) }
			}
		}
		return nil, nil
	}
	switch e.Kind {
	case wire.EventInput:
		x.typist = e.By
	case wire.EventState:
		if e.State != nil && e.State.Phase == wire.PhasePrompt {
			x.prompt = e.Offset
		}
	case wire.EventCommand:
		begin(Command{Op: e.Op, By: e.By, Text: e.Text, Line: line, From: e.Offset, To: e.Offset,
			Started: e.TimeUnix})
	case wire.EventBegun:
		if e.Op != "" {
			if c, _ := find(e.Op); c != nil {
				c.From, c.To = e.Offset, e.Offset
			}
			return
		}
		by := e.By
		if by == "" {
			by = x.typist
		}
		begin(Command{By: by, Line: line, From: e.Offset, To: e.Offset, Started: e.TimeUnix})
	case wire.EventOver:
		c, done := find(e.Op)
		if c == nil {
			return
		}
		c.To, x.over = max(c.From, e.Offset), true
		if e.Op == "" {
			c.Why, c.Exit, c.Ended = wire.Done, e.ExitCode, max(e.TimeUnix, 1)
			done()
		}
	case wire.EventResult:
		if c, done := find(e.Op); c != nil {
			if !x.over {
				c.To = max(c.From, e.Offset)
			}
			c.Why, c.Exit, c.Ended = e.Why, e.ExitCode, max(e.TimeUnix, 1)
			done()
		}
	case wire.EventEnded, Finish:
		for nth, i := range x.open {
			c := &x.commands[i]
			c.To, c.Why, c.Ended = max(c.From, e.Offset), wire.Dead, max(e.TimeUnix, 1)
			if e.State != nil && nth == 0 { // the code is that of the session's own shell
				c.Exit = e.State.ExitCode
			}
		}
		x.open = nil
	}
}
