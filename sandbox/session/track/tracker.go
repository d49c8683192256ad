// Package track infers what the shell or program on a terminal is doing, and on which evidence.
//
// A [Tracker] takes observations – marks of the shell, looks at processes and screen, input,
// output, the end – and returns what they change. The best evidence wins: exit status, process
// facts, marks, the screen, silence. Every state names its basis.
//
// The package is pure: it has no lock, no goroutine, no clock and no I/O. The caller passes the
// time and the end of the log with each observation, reports the [News], and calls [Tracker.Tick]
// when it is due. [Pace] says when to look. The package knows nothing of terminals, parties or
// streams.
package track

import (
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options say what is known of a terminal from its start.
type Options struct {
	Program bool // it runs a program of its own and no shell
	Marked  bool // its shell prints marks
	// TypedMarks: the shell prints marks of commands that were typed, too.
	TypedMarks bool
	// ReadsLines: the shell edits lines at its prompt, and reads them whole elsewhere, as bash
	// does.
	ReadsLines bool
	Probed     bool // processes can be looked at
	NoScreen   bool // the screen does not count as evidence
	// Prompt reports whether the text before the cursor is the prompt of a shell that prints no
	// marks. Nil: nobody knows.
	Prompt func(before string) bool
}

// Moment is when something was observed.
type Moment struct {
	Time time.Time
	End  uint64 // of the log
	Held uint64 // bytes of output behind it that are held back as the echo of a command
}

// News is what an observation changed. The caller first drops what a command that GaveUp left, then
// reports Events in their order, and wakes who waits if Changed.
type News struct {
	Events []wire.Event
	// The shell did not take the command: output that is held back is output like any other.
	GaveUp  bool
	Rests   bool // nothing runs any more: the shell is at its prompt, or has ended
	Changed bool
}

// Command is a run whose text the shell was given, from then until the next prompt. It outlives the
// call that asked for it, which returns when the command waits for input.
type Command struct {
	Op, By string
	Number uint64 // which the shell repeats when it starts
	Line   []byte // that makes the shell take it; not read here
	Typed  bool   // Line is being typed, or was; set by the caller

	Started    bool // its start mark came
	Unfinished bool // the shell did not run it: its parser wants more, or finds it wrong
	Unread     bool // the shell did not run it: it could not read it
	Unsure     bool // whether the shell ran it is not known
	Ended      bool // its end mark came, or the prompt's
	Over       bool // the shell is at its prompt again
	From, To   uint64
	Exit       *int
}

// Counts are how often something happened. They only grow.
type Counts struct {
	Prompted  uint64 // prompts
	Continued uint64 // prompts for the rest of a command
	Concluded uint64 // commands that were over at a prompt; where that is not known, prompts
	Verdicts  uint64 // times that a look found something that callers wait for
}

// Tracker is what is known of one terminal. [New] makes one, [Tracker.Restart] the next.
type Tracker struct {
	opt   Options
	at    Moment // of the observation at hand
	news  News   // of the same
	state wire.State
	exit  *int   // of the last command
	cwd   string // of the shell, from its last prompt

	counts Counts
	phase  wire.Phase // what the marks alone say: prompt, continuation or running
	doubt  bool       // phase is prompt, and another group was in front when the mark came
	forged bool       // another program prints marks too: none proves anything any more

	command *Command // that the shell has; nil when there is none
	began   bool     // a command has begun since the last prompt
	typing  bool     // it was typed and not run

	expecting bool      // a prompt has begun, and was not taken for complete yet
	tries     int       // times that a shell which does not read yet was waited for
	due       time.Time // of Tick; zero when nothing is

	editing bool   // the present prompt said where it ends
	over    uint64 // number of the prompt before which what ran was over
	overAt  uint64 // where in the log that was
	ranTo   uint64 // where in the log the last command that is over ended
	since   uint64 // where the present prompt begins, or the output of the command that a run gave

	activity

	agreed   int    // looks in a row that found the shell reading
	called   uint64 // calls for attention up to the last input
	speaker  speaker
	listener listener
	unseen   unseen
}

// New returns the tracker of a session that has no terminal yet.
func New(now time.Time) *Tracker {
	return &Tracker{activity: activity{printed: now}, phase: wire.PhaseRunning,
		state: wire.State{Phase: wire.PhaseRunning, Reason: "starting", SinceUnix: now.UnixMilli()}}
}

// Restart returns the tracker of the next terminal of t's session.
func (t *Tracker) Restart(opt Options, at Moment) (*Tracker, News) {
	n := &Tracker{
		opt: opt, at: at, phase: wire.PhaseRunning, cwd: t.cwd,
		counts:   Counts{Verdicts: t.counts.Verdicts},
		activity: activity{printed: t.printed, typed: t.typed},
		called:   t.called, speaker: t.speaker, listener: t.listener, unseen: t.unseen,
	}
	n.become(wire.State{Phase: wire.PhaseRunning, Reason: "starting"})
	return n, n.tell()
}

// State returns the present state, with what changes by the clock.
func (t *Tracker) State(now time.Time) wire.State {
	st := t.state
	st.QuietMS = max(now.Sub(t.printed).Milliseconds(), 0)
	st.Basis = slices.Clone(st.Basis)
	if st.Basis == nil {
		st.Basis = []wire.Basis{}
	}
	if st.Cwd == "" {
		st.Cwd = t.cwd
	}
	if t.forged && !slices.Contains(st.Disputed, wire.BasisMark) {
		st.Disputed = append(slices.Clone(st.Disputed), wire.BasisMark)
	}
	return st
}

// Last returns the state as it was last reported.
func (t *Tracker) Last() wire.State { return t.state }

// Phase returns what the terminal is doing.
func (t *Tracker) Phase() wire.Phase { return t.state.Phase }

// Marked returns what the marks alone say: prompt, continuation or running.
func (t *Tracker) Marked() wire.Phase { return t.phase }

// Counts returns how often something happened.
func (t *Tracker) Counts() Counts { return t.counts }

// Command returns the command that the shell has; nil when there is none.
func (t *Tracker) Command() *Command { return t.command }

// Editing reports whether the present prompt said where it ends.
func (t *Tracker) Editing() bool { return t.editing }

// Due returns when Tick is to be called; the zero time if it is not.
func (t *Tracker) Due() time.Time { return t.due }

// OverAt returns where in the log ended what ran before the present prompt; ok is false where it is
// not known.
func (t *Tracker) OverAt() (at uint64, ok bool) { return t.overAt, t.over == t.counts.Prompted }

// Bounds returns the offsets of the log at which one program ends and the next begins: the end of
// the last command, and the begin of the present prompt or of the output of the command that a run
// gave.
func (t *Tracker) Bounds() (ranTo, since uint64) { return t.ranTo, t.since }

// Asks reports whether a program wants input.
func (t *Tracker) Asks() bool {
	switch t.state.Phase {
	case wire.PhaseWaiting, wire.PhaseContinuation:
		return true
	case wire.PhaseRunning, wire.PhaseOpaque:
		return t.state.Attention == likely
	}
	return false
}

// likely is the attention of a program that probably needs a person.
const likely = "likely"

// Rests reports whether nothing runs: the shell is at its prompt, or has ended.
func (t *Tracker) Rests() bool {
	return t.state.Phase == wire.PhasePrompt || t.state.Phase == wire.PhaseDead
}

// Forge notes that another program prints marks, too.
func (t *Tracker) Forge() { t.forged = true }

// Erased notes that the text of the screen was erased.
func (t *Tracker) Erased() {
	t.reads++
	t.state.Prompt = ""
}

// Give notes that the shell is given cmd, with the basis on which it is running from now.
func (t *Tracker) Give(cmd *Command, basis wire.Basis, at Moment) News {
	t.at = at
	t.command, t.due = cmd, time.Time{}
	t.become(wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{basis}})
	return t.tell()
}

// Withdraw notes that cmd was not given after all.
func (t *Tracker) Withdraw(cmd *Command) {
	if t.command == cmd {
		t.command, t.due = nil, time.Time{}
	}
}

// Start notes that cmd, which prints no marks, has begun, with its output from an offset on.
func (t *Tracker) Start(cmd *Command, from uint64) News {
	cmd.Started, cmd.From = true, from
	t.emit(wire.Event{Kind: wire.EventBegun, Offset: from, Op: cmd.Op, By: cmd.By})
	return t.tell()
}

// Exit notes that the shell or program has ended, by a code or by a signal.
func (t *Tracker) Exit(code *int, signal, reason string, at Moment) News {
	if t.state.Phase == wire.PhaseDead {
		return News{}
	}
	t.at, t.due = at, time.Time{}
	if cmd := t.command; cmd != nil {
		t.command = nil
		if !cmd.Started {
			cmd.From = at.End
		}
		if !cmd.Ended {
			t.ends(cmd, at.End)
		}
		t.emit(wire.Event{Kind: wire.EventResult, Op: cmd.Op, By: cmd.By, ExitCode: code,
			Why: wire.Dead})
	}
	t.become(wire.State{Phase: wire.PhaseDead, ExitCode: code, Signal: signal, Reason: reason,
		Cwd:   t.cwd,
		Basis: []wire.Basis{wire.BasisExit}})
	told := t.State(at.Time)
	t.emit(wire.Event{Kind: wire.EventEnded, State: &told})
	t.news.Rests = true
	return t.tell()
}

// Close notes that the session is closed, and its program with it.
func (t *Tracker) Close(reason string, at Moment) News {
	if t.state.Phase == wire.PhaseDead {
		return News{}
	}
	t.at, t.due = at, time.Time{}
	t.become(wire.State{Phase: wire.PhaseDead, Reason: reason, Cwd: t.cwd,
		Basis: []wire.Basis{wire.BasisExit}})
	return t.tell()
}

// become makes st the state from here on, and reports it.
func (t *Tracker) become(st wire.State) {
	if st.Offset == 0 {
		st.Offset = t.at.End
	}
	st.SinceUnix = t.at.Time.UnixMilli()
	t.state = st
	told := t.State(t.at.Time)
	t.emit(wire.Event{Kind: wire.EventState, State: &told, Offset: st.Offset})
}

func (t *Tracker) emit(ev wire.Event) { t.news.Events = append(t.news.Events, ev) }

// tell returns what the observation at hand changed.
func (t *Tracker) tell() News {
	n := t.news
	t.news = News{}
	return n
}
