package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// promptPatience is how long to wait for the end mark of a prompt. The mark never comes if the
	// user removed our part from PS1.
	promptPatience = 50 * time.Millisecond
	// promptTries is how often that wait is repeated while the shell does not read yet: its prompt
	// may be slow to compute, or the machine busy.
	promptTries = 40
	// takenTime is how long a shell at its prompt may need to take a command, if its processes
	// cannot be inspected. Other lines may have been typed before the command.
	takenTime = 500 * time.Millisecond
)

// Front says which process group is in the terminal's foreground.
type Front struct {
	// it is the shell's own, which a program in front of the shell cannot fake
	Shell bool `json:"shell,omitempty"`
	Known bool `json:"known,omitempty"`
}

// basis returns the evidence behind a mark that has just arrived.
func (f Front) basis() []wire.Basis {
	if f.Shell && f.Known {
		return []wire.Basis{wire.BasisProcess, wire.BasisMark}
	}
	return []wire.Basis{wire.BasisMark}
}

// Starts reports whether m is the start mark of the command that was given to the shell.
func (t *Tracker) Starts(m marks.Mark) bool {
	cmd := t.command
	return m.Kind == marks.CommandStart && m.Run && cmd != nil && !cmd.Started &&
		cmd.Number == m.Number
}

// Key records that the shell has received the key that makes it take a command.
func (t *Tracker) Key() {
	t.note(KindKey, Moment{}, nil)
	t.phase = wire.PhaseRunning
}

// Mark processes a mark of the shell. All output before the mark must be in the log. Before a mark
// that Starts a command, this includes the output that was held back.
func (t *Tracker) Mark(m marks.Mark, front Front, at Moment) News {
	if t.state.Phase == wire.PhaseDead {
		return News{}
	}
	t.note(KindMark, at, &With{Front: &front, Mark: &MarkSeen{Kind: m.Kind, Exit: m.Exit,
		Run: m.Run, Number: m.Number}})
	t.at = at
	cmd := t.command
	waits := cmd != nil && !cmd.Started
	switch m.Kind {
	case marks.CommandStart:
		t.commandStarts(m)
	case marks.CommandEnd:
		t.exit = &m.Exit
		t.typedOver()
		t.over, t.overAt, t.ranTo = t.counts.Prompted+1, at.End, at.End
		if cmd != nil && cmd.Started && !cmd.Ended {
			t.ends(cmd, at.End)
		}
	case marks.Refused:
		t.phase = wire.PhasePrompt
		if waits {
			cmd.Unfinished = true
		}
		t.ready(front.basis())
	case marks.Unread:
		if waits {
			cmd.Unread = true
		}
	case marks.PromptStart:
		t.promptStarts(m)
	case marks.PromptEnd:
		t.editing = true
		if waits && !t.expecting {
			t.news.Changed = true
			// The mark is late: the prompt already counted as complete, and the command was given
			// at it.
			break
		}
		t.prompt(front)
	case marks.PromptAgain:
		if front.Shell && t.doubt && t.phase == wire.PhasePrompt {
			// The mark confirms a prompt that another program may have forged.
			t.ready(front.basis())
		}
	case marks.Continuation:
		t.phase = wire.PhaseContinuation
		t.counts.Continued++
		t.become(wire.State{Phase: wire.PhaseContinuation, Basis: front.basis()})
	}
	return t.tell()
}

// commandStarts handles the mark before a command, which was given by a run or typed by a user.
func (t *Tracker) commandStarts(m marks.Mark) {
	t.phase, t.began = wire.PhaseRunning, true
	if t.Starts(m) {
		cmd := t.command
		cmd.Started, cmd.From, t.since = true, t.at.End, t.at.End
		t.emit(wire.Event{Kind: wire.EventBegun, Offset: cmd.From, Op: cmd.Op, By: cmd.By})
		return
	}
	if t.command != nil {
		return
	}
	t.typing = true
	t.emit(wire.Event{Kind: wire.EventBegun})
	if t.state.Phase != wire.PhaseRunning {
		t.become(wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{wire.BasisMark}})
	}
}

// promptStarts handles the mark before a prompt, which means that the last command has ended.
// Without an end mark, the prompt counts as complete when the shell reads. It must not count
// earlier: a line typed before the shell has set the terminal's modes is echoed twice.
func (t *Tracker) promptStarts(m marks.Mark) {
	end := t.at.End
	t.editing, t.since = false, end
	if t.began || !t.opt.TypedMarks {
		t.began = false
		t.counts.Concluded++
	}
	t.exit = &m.Exit
	t.typedOver()
	if m.Cwd != "" {
		t.cwd = m.Cwd
	}
	// An empty line ends without having started.
	if next := t.counts.Prompted + 1; t.over != next {
		t.over, t.overAt = next, end
	}
	switch cmd := t.command; {
	case cmd == nil || cmd.Ended:
	case cmd.Started:
		t.ends(cmd, end)
	default:
		// The typed command may still be queued: another line ran.
		cmd.From, cmd.To = end, end
	}
	t.expecting, t.tries, t.due = true, 0, t.at.Time.Add(promptPatience)
}

// Tick does what is due after a wait; see Due. busy says that the shell does not read its terminal
// yet, or that output of it has not arrived yet.
func (t *Tracker) Tick(busy bool, front Front, at Moment) News {
	if t.due.IsZero() || at.Time.Before(t.due) {
		return News{}
	}
	t.note(KindTick, at, &With{Busy: busy, Front: &front})
	t.at, t.due = at, time.Time{}
	cmd := t.command
	switch {
	case t.expecting && t.phase == wire.PhaseRunning:
		if t.tries++; busy && t.tries < promptTries {
			t.due = at.Time.Add(promptPatience)
			break
		}
		t.prompt(front)
	case !t.expecting && t.phase == wire.PhasePrompt && cmd != nil && !cmd.Started:
		cmd.Unsure = true
		t.ready(front.basis())
	}
	return t.tell()
}

// Expecting reports whether a prompt has started and does not count as complete yet.
func (t *Tracker) Expecting() bool { return t.expecting && t.phase == wire.PhaseRunning }

// prompt handles the mark that ends a prompt. The mark does not count if another process group is
// known to be in the foreground. A command that was given may not have run yet: its line may be
// queued after others. A later look finds the shell reading with nothing queued. If processes
// cannot be inspected, takenTime decides.
func (t *Tracker) prompt(front Front) {
	t.phase, t.expecting, t.due = wire.PhasePrompt, false, time.Time{}
	t.counts.Prompted++
	cmd := t.command
	switch {
	case front.Known && !front.Shell:
		t.doubt = true
		t.state.Disputed = []wire.Basis{wire.BasisMark}
		t.news.Changed = true
	case cmd != nil && !cmd.Started && !cmd.Unread:
		t.news.Changed = true
		if !front.Known || !t.opt.Probed {
			t.due = t.at.Time.Add(takenTime)
		}
	default:
		t.ready(front.basis())
	}
}

// ends records where the output of cmd ends. It reports that at once, so that a client that streams
// the output does not include the prompt.
func (t *Tracker) ends(cmd *Command, end uint64) {
	cmd.Ended, cmd.To = true, end
	if cmd.Started {
		t.emit(wire.Event{Kind: wire.EventOver, Offset: end, Op: cmd.Op, By: cmd.By})
	}
}

// typedOver reports that a command typed by a user has ended.
func (t *Tracker) typedOver() {
	if t.typing {
		t.typing = false
		t.emit(wire.Event{Kind: wire.EventOver, ExitCode: t.exit})
	}
}

// ready sets the state to prompt, and ends the command that was given.
func (t *Tracker) ready(basis []wire.Basis) {
	t.doubt = false
	if cmd := t.command; cmd != nil {
		t.command, t.due = nil, time.Time{}
		cmd.Over, cmd.Exit = true, t.exit
		why := wire.Done
		if !cmd.Started {
			if why, cmd.Exit = wire.Refused, nil; cmd.Unsure {
				why = wire.Lost
			}
			t.giveUp(cmd)
		}
		t.emit(wire.Event{Kind: wire.EventResult, Op: cmd.Op, By: cmd.By, ExitCode: cmd.Exit,
			Why: why})
	}
	endLeft(t)
	t.become(wire.State{Phase: wire.PhasePrompt, ExitCode: t.exit, Cwd: t.cwd, Basis: basis})
	t.news.Rests = true
}

// giveUp records that the shell did not take cmd. The log now includes the output that was held
// back as its echo.
func (t *Tracker) giveUp(cmd *Command) {
	if !cmd.Ended && cmd.To == 0 {
		cmd.From, cmd.To = t.at.End, t.at.End
	}
	cmd.Ended = true
	t.at.End, t.at.Held = t.at.End+t.at.Held, 0
	t.news.GaveUp = true
}
