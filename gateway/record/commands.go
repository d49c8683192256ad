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

// command records what an event says about commands. A guest may send any event.
func (x *index) command(e wire.Event) {
	line := [2]uint64{min(x.prompt, e.Offset), e.Offset}
	open := func() *Command { // the newest, unless it is over: a shell runs one after the other
		if n := len(x.commands); n > 0 && x.commands[n-1].Ended == 0 {
			return &x.commands[n-1]
		}
		return nil
	}
	switch e.Kind {
	case wire.EventInput:
		x.typist = e.By
	case wire.EventState:
		if e.State != nil && e.State.Phase == wire.PhasePrompt {
			x.prompt = e.Offset
		}
	case wire.EventCommand:
		x.over = false
		x.commands = append(x.commands, Command{Op: e.Op, By: e.By, Text: e.Text, Line: line,
			From: e.Offset, To: e.Offset, Started: e.TimeUnix})
	case wire.EventBegun:
		if c := open(); e.Op != "" {
			if c != nil && c.Op == e.Op {
				c.From, c.To = e.Offset, e.Offset
			}
			return
		}
		by := e.By
		if by == "" {
			by = x.typist
		}
		x.over = false
		x.commands = append(x.commands, Command{By: by, Line: line, From: e.Offset, To: e.Offset,
			Started: e.TimeUnix})
	case wire.EventOver:
		c := open()
		if c == nil || c.Op != e.Op {
			return
		}
		c.To, x.over = max(c.From, e.Offset), true
		if e.Op == "" {
			c.Why, c.Exit, c.Ended = wire.Done, e.ExitCode, max(e.TimeUnix, 1)
		}
	case wire.EventResult:
		if c := open(); c != nil && c.Op == e.Op {
			if !x.over {
				c.To = max(c.From, e.Offset)
			}
			c.Why, c.Exit, c.Ended = e.Why, e.ExitCode, max(e.TimeUnix, 1)
		}
	case wire.EventEnded, Finish:
		if c := open(); c != nil {
			c.To, c.Why, c.Ended = max(c.From, e.Offset), wire.Dead, max(e.TimeUnix, 1)
			if e.State != nil {
				c.Exit = e.State.ExitCode
			}
		}
	}
}
