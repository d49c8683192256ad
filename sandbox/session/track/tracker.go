// Package track infers what the shell or program on a terminal is doing, and from which evidence.
//
// A [Tracker] takes observations and returns what they change. Observations are the shell's marks,
// looks at processes and the screen, input, output, and the end of the program. The best evidence
// wins: exit status, then process facts, marks, the screen, silence. Every state names its basis.
//
// The package is pure: it has no lock, no goroutine, no clock and no I/O. With each observation,
// the caller passes the time and the end of the log. It reports the [News], and calls
// [Tracker.Tick] when that is due. [Pace] says when to look. The package knows nothing of
// terminals, parties or streams.
package track

import (
	"cmp"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are the facts about a terminal that do not change.
type Options struct {
	Depth int `json:"depth,omitempty"` // number of shells that this one runs in
	// the shell, if it was started in the session's own; otherwise nil
	Process *wire.Shell `json:"process,omitempty"`
	// the shell is behind a relay: only its marks and the screen tell of it
	Relayed bool `json:"relayed,omitempty"`
	Program bool `json:"program,omitempty"` // the terminal runs a program and no shell
	Marked  bool `json:"marked,omitempty"`  // the shell prints marks
	// TypedMarks: the shell also prints marks for commands that a user types.
	TypedMarks bool `json:"typed_marks,omitempty"`
	// ReadsLines: the shell edits lines at its prompt, but reads whole lines elsewhere, as bash
	// does.
	ReadsLines bool `json:"reads_lines,omitempty"`
	Probed     bool `json:"probed,omitempty"`    // processes can be inspected
	NoScreen   bool `json:"no_screen,omitempty"` // the screen is not used as evidence
	// Prompt reports whether the text before the cursor is the prompt of a shell without marks. Nil
	// means that the prompt of this shell is not known.
	Prompt func(before string) bool `json:"-"`
}

// Moment is the time of an observation, and the state of the log at that time.
type Moment struct {
	Time time.Time
	End  uint64 // end of the log, an offset in bytes
	Held uint64 // bytes of output after End that are held back as the echo of a command
}

// News is what an observation changed. If GaveUp is set, the caller first logs the output that it
// held back as an echo. Then it reports Events in order, and wakes waiting callers if Changed is
// set.
type News struct {
	Events []wire.Event
	// GaveUp: the shell did not take the command. The output that was held back is not its echo.
	GaveUp  bool
	Rests   bool // nothing runs now: the shell is at its prompt, or has ended
	Changed bool
}

// Command is a run, from the time its text is given to the shell until the next prompt. It outlives
// the call that started it: the call returns when the command waits for input.
type Command struct {
	Op, By string
	Number uint64 // number of the run; the start mark repeats it
	Line   []byte // input that makes the shell take the command; not read here
	Typed  bool   // the caller types Line now, or has typed it; see Types

	Started    bool // its start mark arrived
	Unfinished bool // the shell did not run it: it is incomplete, or has a syntax error
	Unread     bool // the shell did not run it: it could not read it
	Unsure     bool // it is not known whether the shell ran it
	Ended      bool // its end mark arrived, or the mark of the next prompt
	Over       bool // the shell is at its prompt again
	From, To   uint64
	Exit       *int
}

// Counts are how often something happened. They never decrease.
type Counts struct {
	Prompted  uint64 `json:"prompted,omitempty"`  // prompts
	Continued uint64 `json:"continued,omitempty"` // continuation prompts
	// commands that ended at a prompt; all prompts if typed commands have no marks
	Concluded uint64 `json:"concluded,omitempty"`
	// looks that found something callers wait for
	Verdicts uint64 `json:"verdicts,omitempty"`
}

// Tracker infers the state of one terminal. [New] returns the first of a session, [Tracker.Restart]
// each later one.
type Tracker struct {
	opt   Options
	news  News // of the current observation
	state wire.State
	exit  *int   // exit code of the last command
	cwd   string // working directory of the shell at its last prompt
	image uint64 // of the shell, as Facts.ShellImage; 0 if it is not known yet

	counts Counts
	phase  wire.Phase // what the marks alone say: prompt, continuation or running
	doubt  bool       // phase is prompt, but the mark arrived while another group was in front
	forged bool       // another program prints marks too: they prove nothing

	command *Command // the command that was given to the shell; nil if there is none
	left    []ending // commands of shells inside, which end at the next prompt
	began   bool     // a command has started since the last prompt
	typing  bool     // that command was typed by a user, not started by a run

	expecting bool      // a prompt has started, and does not count as complete yet
	tries     int       // how often Tick has waited for a shell that does not read yet
	due       time.Time // when to call Tick; zero for never

	editing bool   // the current prompt had an end mark
	over    uint64 // number of the prompt that followed the end at overAt
	overAt  uint64 // offset at which the last command or program ended
	ranTo   uint64 // offset at which the last finished command ended
	since   uint64 // offset at which the current prompt, or the output of the current run, starts

	observed

	agreed   int    // successive looks that found the shell reading
	called   uint64 // calls for attention up to the last input
	speaker  speaker
	listener listener
	worker   worker
	unseen   unseen
}

// New returns the tracker of a session that has no terminal yet.
func New(now time.Time) *Tracker {
	t := newTracker(now)
	t.ring = newRing(now)
	return t
}

func newTracker(now time.Time) *Tracker {
	return &Tracker{observed: observed{activity: activity{printed: now}}, phase: wire.PhaseRunning,
		state: wire.State{Phase: wire.PhaseRunning, Reason: "starting", SinceUnix: now.UnixMilli()}}
}

// Restart returns the tracker of the session's next terminal, or, with a Process, of a shell that
// was started in t's on the same terminal.
func (t *Tracker) Restart(opt Options, at Moment) (*Tracker, News) {
	n := &Tracker{
		opt: opt, phase: wire.PhaseRunning, cwd: t.cwd,
		counts:   Counts{Verdicts: t.counts.Verdicts},
		observed: observed{ring: t.ring, activity: activity{printed: t.printed, typed: t.typed}},
		called:   t.called, speaker: t.speaker, listener: t.listener, worker: t.worker,
		unseen: t.unseen,
	}
	if opt.Process != nil {
		n.counts, n.activity, n.cwd = t.counts, t.activity, ""
	}
	n.at = at
	n.ring.joins(n, t.number, at)
	n.become(wire.State{Phase: wire.PhaseRunning, Reason: "starting"})
	return n, n.tell()
}

// Leave notes that the shell around this one, whose tracker is outer, has the terminal again: this
// one has ended, or was stopped. exit is the exit code of its command; nil if that is not known.
// The command is over, with why, when the outer shell is at its prompt. With wire.Refused this
// shell was never entered, and the outer state is what it was.
func (t *Tracker) Leave(outer *Tracker, exit *int, why wire.Ended, at Moment) News {
	t.note(KindLeave, at, &With{Other: outer.number, Exit: exit, Why: why})
	t.ring.leaves(outer)
	t.at, t.due, t.exit = at, time.Time{}, exit
	outer.left = append(outer.left, t.left...)
	t.left = nil
	t.typedOver()
	if cmd := t.command; cmd != nil && cmd.Started {
		t.command, cmd.Exit = nil, exit
		if !cmd.Ended {
			t.ends(cmd, at.End)
		}
		outer.left = append(outer.left, ending{cmd, why})
	} else if cmd != nil {
		t.command, cmd.Over, cmd.Unsure = nil, true, true
		t.giveUp(cmd)
		t.emit(wire.Event{Kind: wire.EventResult, Op: cmd.Op, By: cmd.By, Why: wire.Lost})
	}
	outer.at = at
	outer.counts, outer.activity, outer.called = t.counts, t.activity, t.called
	outer.speaker, outer.listener, outer.unseen = t.speaker, t.listener, t.unseen
	outer.worker = t.worker
	st := wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{wire.BasisProcess}}
	if why == wire.Refused {
		st = outer.state
	}
	outer.become(st)
	news := t.tell()
	news.Events = append(news.Events, outer.tell().Events...)
	news.Changed = true
	return news
}

// ending is a command whose shell has ended, and why it ends.
type ending struct {
	command *Command
	why     wire.Ended
}

// endLeft ends the commands of shells that have ended inside this one.
func endLeft(t *Tracker) {
	for _, e := range t.left {
		e.command.Over = true
		t.emit(wire.Event{Kind: wire.EventResult, Op: e.command.Op, By: e.command.By,
			ExitCode: e.command.Exit, Why: e.why})
	}
	t.left = nil
}

// Know notes which program the shell is, as in Facts.ShellImage, if that is not known.
func (t *Tracker) Know(image uint64) {
	t.note(KindKnow, Moment{}, &With{Image: image})
	t.image = cmp.Or(t.image, image)
}

// State returns the current state, including the fields that depend on the clock.
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
	if st.Shell == nil {
		st.Shell = t.opt.Process
	}
	if t.forged && !slices.Contains(st.Disputed, wire.BasisMark) {
		st.Disputed = append(slices.Clone(st.Disputed), wire.BasisMark)
	}
	return st
}

// Last returns the state as last reported.
func (t *Tracker) Last() wire.State { return t.state }

// Phase returns what the terminal is doing.
func (t *Tracker) Phase() wire.Phase { return t.state.Phase }

// Marked returns the phase by the marks alone: prompt, continuation or running.
func (t *Tracker) Marked() wire.Phase { return t.phase }

// Counts returns the counts so far.
func (t *Tracker) Counts() Counts { return t.counts }

// Command returns the command that was given to the shell, or nil if there is none.
func (t *Tracker) Command() *Command { return t.command }

// Editing reports whether the current prompt had an end mark.
func (t *Tracker) Editing() bool { return t.editing }

// Due returns when to call Tick, or the zero time for never.
func (t *Tracker) Due() time.Time { return t.due }

// OverAt returns the log offset at which the last command or program before the current prompt
// ended. ok is false if it is not known.
func (t *Tracker) OverAt() (at uint64, ok bool) { return t.overAt, t.over == t.counts.Prompted }

// Bounds returns the log offsets at which one program ends and the next starts. ranTo is the end of
// the last command. since is the start of the current prompt or, during a run, of its output.
func (t *Tracker) Bounds() (ranTo, since uint64) { return t.ranTo, t.since }

// Asks reports whether a program wants input, or the shell the rest of a command.
func Asks(st wire.State) bool {
	switch st.Phase {
	case wire.PhaseWaiting, wire.PhaseContinuation:
		return true
	case wire.PhaseRunning, wire.PhaseOpaque:
		return st.Attention == likely
	}
	return false
}

// likely is the attention value of a program that probably waits for a person.
const likely = "likely"

// Rests reports whether nothing runs: the shell is at its prompt, or has ended.
func (t *Tracker) Rests() bool {
	return t.state.Phase == wire.PhasePrompt || t.state.Phase == wire.PhaseDead
}

// Forge records that another program prints marks too.
func (t *Tracker) Forge() {
	t.note(KindForge, Moment{}, nil)
	t.forged = true
}

// Erased records that the text on the screen was erased.
func (t *Tracker) Erased() {
	t.note(KindErased, Moment{}, nil)
	t.reads++
	t.state.Prompt = ""
}

// Give records that cmd is given to the shell. The state is running from now on, by basis.
func (t *Tracker) Give(cmd *Command, basis wire.Basis, at Moment) News {
	t.note(KindGive, at, &With{Command: cmd.seen(), Basis: basis})
	t.at = at
	t.command, t.due = cmd, time.Time{}
	t.become(wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{basis}})
	return t.tell()
}

// Types records that the input which makes the shell take cmd is typed from now on.
func (t *Tracker) Types(cmd *Command) {
	if t.command == cmd {
		t.note(KindTypes, Moment{}, nil)
	}
	cmd.Typed = true
}

// Withdraw records that cmd was not given to the shell after all.
func (t *Tracker) Withdraw(cmd *Command) {
	if t.command == cmd {
		t.note(KindWithdraw, Moment{}, nil)
		t.command, t.due = nil, time.Time{}
	}
}

// Start records that cmd, which prints no marks, has started. Its output begins at offset from.
func (t *Tracker) Start(cmd *Command, from uint64) News {
	if t.command == cmd {
		t.note(KindStart, Moment{End: from}, nil)
	}
	cmd.Started, cmd.From = true, from
	t.emit(wire.Event{Kind: wire.EventBegun, Offset: from, Op: cmd.Op, By: cmd.By})
	return t.tell()
}

// Exit records that the shell or program has ended, with an exit code or by a signal.
func (t *Tracker) Exit(code *int, signal, reason string, at Moment) News {
	if t.state.Phase == wire.PhaseDead {
		return News{}
	}
	t.note(KindExit, at, &With{Exit: code, Signal: signal})
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
	endLeft(t)
	t.become(wire.State{Phase: wire.PhaseDead, ExitCode: code, Signal: signal, Reason: reason,
		Cwd:   t.cwd,
		Basis: []wire.Basis{wire.BasisExit}})
	told := t.State(at.Time)
	t.emit(wire.Event{Kind: wire.EventEnded, State: &told})
	t.news.Rests = true
	return t.tell()
}

// Close records that the session was closed, which also ended its program.
func (t *Tracker) Close(reason string, at Moment) News {
	if t.state.Phase == wire.PhaseDead {
		return News{}
	}
	t.note(KindClose, at, nil)
	t.at, t.due = at, time.Time{}
	t.become(wire.State{Phase: wire.PhaseDead, Reason: reason, Cwd: t.cwd,
		Basis: []wire.Basis{wire.BasisExit}})
	return t.tell()
}

// become sets the state to st and reports it.
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

// tell returns and clears the news of the current observation.
func (t *Tracker) tell() News {
	n := t.news
	t.news = News{}
	return n
}
