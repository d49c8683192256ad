package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// promptPatience is how long the end of a prompt is waited for: a shell whose user took our
	// part out of PS1 never prints that mark.
	promptPatience = 50 * time.Millisecond
	// promptTries is how many times that a shell which does not read yet is given: it is busy with
	// its prompt, or the machine is.
	promptTries = 40
	// takenTime is how long a shell at its prompt that nobody can look at is given to take a
	// command: other lines may have been typed before it.
	takenTime = 500 * time.Millisecond
)

// Front says who has the terminal.
type Front struct {
	Shell bool // the shell's own group, which a program in front of it cannot arrange
	Known bool
}

// basis is what a mark that has just come stands on.
func (f Front) basis() []wire.Basis {
	if f.Shell && f.Known {
		return []wire.Basis{wire.BasisProcess, wire.BasisMark}
	}
	return []wire.Basis{wire.BasisMark}
}

// Starts reports whether m is the start of the command that the shell was given.
func (t *Tracker) Starts(m marks.Mark) bool {
	cmd := t.command
	return m.Kind == marks.CommandStart && m.Run && cmd != nil && !cmd.Started &&
		cmd.Number == m.Number
}

// Key notes that the shell has seen the key by which it takes a command.
func (t *Tracker) Key() { t.phase = wire.PhaseRunning }

// Mark takes a mark of the shell. All output before it is in the log; before the mark that Starts a
// command, output that was held back is, too.
func (t *Tracker) Mark(m marks.Mark, front Front, at Moment) News {
	if t.state.Phase == wire.PhaseDead {
		return News{}
	}
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
			// Late, of the prompt that was taken for complete and at which the command was given.
			break
		}
		t.prompt(front)
	case marks.PromptAgain:
		if front.Shell && t.doubt && t.phase == wire.PhasePrompt {
			t.ready(front.basis()) // the shell says it now, after a program that forged it
		}
	case marks.Continuation:
		t.phase = wire.PhaseContinuation
		t.counts.Continued++
		t.become(wire.State{Phase: wire.PhaseContinuation, Basis: front.basis()})
	}
	return t.tell()
}

// commandStarts takes the mark before a command that runs: the one that was given, or one that was
// typed.
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

// promptStarts takes the mark before a prompt: what ran is over. The prompt is taken for complete
// when the shell reads and the mark of its end does not come. Earlier would be wrong: a line that
// is typed before the shell has set its terminal up is echoed twice.
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
	if next := t.counts.Prompted + 1; t.over != next { // an empty line ends without having begun
		t.over, t.overAt = next, end
	}
	switch cmd := t.command; {
	case cmd == nil || cmd.Ended:
	case cmd.Started:
		t.ends(cmd, end)
	default: // what was typed for it may still be queued: another line ran
		cmd.From, cmd.To = end, end
	}
	t.expecting, t.tries, t.due = true, 0, t.at.Time.Add(promptPatience)
}

// Tick is called when it is Due. busy says that the shell is known not to read its terminal yet, or
// that what it printed has not come out of it.
func (t *Tracker) Tick(busy bool, front Front, at Moment) News {
	if t.due.IsZero() || at.Time.Before(t.due) {
		return News{}
	}
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

// Expecting reports whether a prompt has begun, and was not taken for complete yet.
func (t *Tracker) Expecting() bool { return t.expecting && t.phase == wire.PhaseRunning }

// prompt is the moment at which the shell is ready for a command, by its mark. It counts only if
// the shell's own group has the terminal. Whether the shell takes the command that it was given,
// whose line may be queued behind others, stays open: who looks at the shell finds it reading when
// nothing is queued any more. Where nobody can, time has to do.
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

// ends notes where the output of cmd ends. It reports that at once: who passes the output on as it
// comes must not find the prompt in it.
func (t *Tracker) ends(cmd *Command, end uint64) {
	cmd.Ended, cmd.To = true, end
	if cmd.Started {
		t.emit(wire.Event{Kind: wire.EventOver, Offset: end, Op: cmd.Op, By: cmd.By})
	}
}

// typedOver reports that a command which was typed is over.
func (t *Tracker) typedOver() {
	if t.typing {
		t.typing = false
		t.emit(wire.Event{Kind: wire.EventOver, ExitCode: t.exit})
	}
}

// ready makes the state prompt: what ran is over.
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
	t.become(wire.State{Phase: wire.PhasePrompt, ExitCode: t.exit, Cwd: t.cwd, Basis: basis})
	t.news.Rests = true
}

// giveUp notes that cmd was not taken: what was held back as its echo is in the log now.
func (t *Tracker) giveUp(cmd *Command) {
	if !cmd.Ended && cmd.To == 0 {
		cmd.From, cmd.To = t.at.End, t.at.End
	}
	cmd.Ended = true
	t.at.End, t.at.Held = t.at.End+t.at.Held, 0
	t.news.GaveUp = true
}
