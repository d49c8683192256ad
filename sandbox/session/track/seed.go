package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Seed is a Tracker as data. Directories, names of users and reasons are left out: nothing is
// judged by them. Times are in microseconds of Unix time; 0 is the zero time.
type Seed struct {
	Number  int        `json:"number"`
	Options Options    `json:"options"`
	ByLine  bool       `json:"by_line,omitempty"` // Options.Prompt is set
	State   wire.State `json:"state"`
	Exit    *int       `json:"exit,omitempty"`
	Image   uint64     `json:"image,omitempty"`
	Counts  Counts     `json:"counts,omitzero"`
	Phase   wire.Phase `json:"phase"` // by the marks alone
	Doubt   bool       `json:"doubt,omitempty"`
	Forged  bool       `json:"forged,omitempty"`

	Command *CommandSeen `json:"command,omitempty"`
	Began   bool         `json:"began,omitempty"`
	Typing  bool         `json:"typing,omitempty"`

	Expecting bool  `json:"expecting,omitempty"`
	Tries     int   `json:"tries,omitempty"`
	Due       int64 `json:"due,omitempty"`

	Editing bool   `json:"editing,omitempty"`
	Over    uint64 `json:"over,omitempty"`
	OverAt  uint64 `json:"over_at,omitempty"`
	RanTo   uint64 `json:"ran_to,omitempty"`
	Since   uint64 `json:"since,omitempty"`

	Printed  int64  `json:"printed,omitempty"`
	Reads    uint64 `json:"reads,omitempty"`
	Writes   uint64 `json:"writes,omitempty"`
	Wrote    int64  `json:"wrote,omitempty"`
	Answered uint64 `json:"answered,omitempty"`
	Before   Reader `json:"before,omitzero"`

	Agreed        int       `json:"agreed,omitempty"`
	Called        uint64    `json:"called,omitempty"`
	SpeakerCount  uint64    `json:"speaker_count,omitempty"`
	SpeakerGroup  int       `json:"speaker_group,omitempty"`
	ListenerGroup int       `json:"listener_group,omitempty"`
	ListenerAt    int64     `json:"listener_at,omitempty"`
	ListenerSince int64     `json:"listener_since,omitempty"`
	ListenerRest  uint64    `json:"listener_rest,omitempty"`
	WorkerGroup   int       `json:"worker_group,omitempty"`
	WorkerAt      int64     `json:"worker_at,omitempty"`
	UnseenPID     int       `json:"unseen_pid,omitempty"`
	UnseenRuns    uint64    `json:"unseen_runs,omitempty"`
	UnseenAt      int64     `json:"unseen_at,omitempty"`
	UnseenModes   ModesSeen `json:"unseen_modes,omitzero"`
	UnseenSince   int64     `json:"unseen_since,omitempty"`
}

// seedOf returns t as data, with the times of r.
func seedOf(t *Tracker, r *ring) Seed {
	at := r.stamp
	return Seed{
		Number: t.observed.number, Options: t.opt.public(), ByLine: t.opt.Prompt != nil,
		State: publicState(t.state), Exit: t.exit, Image: t.image, Counts: t.counts,
		Phase: t.phase, Doubt: t.doubt, Forged: t.forged,
		Command: t.command.seen(), Began: t.began, Typing: t.typing,
		Expecting: t.expecting, Tries: t.tries, Due: at(t.due),
		Editing: t.editing, Over: t.over, OverAt: t.overAt, RanTo: t.ranTo, Since: t.since,
		Printed: at(t.printed), Reads: t.reads, Writes: t.writes, Wrote: at(t.typed),
		Answered: t.answered, Before: t.before,
		Agreed: t.agreed, Called: t.called,
		SpeakerCount: t.speaker.count, SpeakerGroup: t.speaker.group,
		ListenerGroup: t.listener.group, ListenerAt: at(t.listener.at),
		ListenerSince: at(t.listener.since), ListenerRest: t.listener.rested,
		WorkerGroup: t.worker.group, WorkerAt: at(t.worker.at),
		UnseenPID: t.unseen.pid, UnseenRuns: t.unseen.runs, UnseenAt: at(t.unseen.at),
		UnseenModes: ModesSeen{Modes: t.unseen.modes}, UnseenSince: at(t.unseen.since),
	}
}

// tracker returns the tracker that s describes.
func (s *Seed) tracker() *Tracker {
	return &Tracker{
		opt: s.Options, state: s.State, exit: s.Exit, image: s.Image,
		counts: s.Counts, phase: s.Phase, doubt: s.Doubt, forged: s.Forged,
		command: s.Command.command(), began: s.Began, typing: s.Typing,
		expecting: s.Expecting, tries: s.Tries, due: timeOf(s.Due),
		editing: s.Editing, over: s.Over, overAt: s.OverAt, ranTo: s.RanTo, since: s.Since,
		observed: observed{number: s.Number, activity: activity{printed: timeOf(s.Printed),
			reads: s.Reads, writes: s.Writes, typed: timeOf(s.Wrote), answered: s.Answered,
			before: s.Before}},
		agreed: s.Agreed, called: s.Called,
		speaker: speaker{count: s.SpeakerCount, group: s.SpeakerGroup},
		listener: listener{group: s.ListenerGroup, at: timeOf(s.ListenerAt),
			since: timeOf(s.ListenerSince), rested: s.ListenerRest},
		worker: worker{group: s.WorkerGroup, at: timeOf(s.WorkerAt)},
		unseen: unseen{pid: s.UnseenPID, runs: s.UnseenRuns, at: timeOf(s.UnseenAt),
			modes: s.UnseenModes.Modes, since: timeOf(s.UnseenSince)},
	}
}

// timeOf returns the time of a trace.
func timeOf(stamp int64) time.Time {
	if stamp == 0 {
		return time.Time{}
	}
	return time.UnixMicro(stamp)
}

// public returns the options without a function and without the names of users.
func (o Options) public() Options {
	o.Prompt = nil
	if p := o.Process; p != nil {
		o.Process = &wire.Shell{Pid: p.Pid, Name: p.Name, Depth: p.Depth}
	}
	return o
}

// publicState returns what a trace may have of a state.
func publicState(st wire.State) wire.State {
	st.Cwd, st.Reason, st.LastLine = "", "", ""
	if s := st.Shell; s != nil {
		st.Shell = &wire.Shell{Pid: s.Pid, Name: s.Name, Depth: s.Depth}
	}
	if f := st.Foreground; f != nil {
		st.Foreground = &wire.Process{Pid: f.Pid, Argv: shortArgv(f.Argv)}
	}
	st.Prompt = st.Prompt[max(0, len(st.Prompt)-maxBefore):]
	return st
}

// seen returns what a trace has of a command.
func (c *Command) seen() *CommandSeen {
	if c == nil {
		return nil
	}
	return &CommandSeen{Number: c.Number, Typed: c.Typed, Started: c.Started,
		Unfinished: c.Unfinished, Unread: c.Unread, Unsure: c.Unsure, Ended: c.Ended, Over: c.Over}
}

// command returns the command that c describes.
func (c *CommandSeen) command() *Command {
	if c == nil {
		return nil
	}
	return &Command{Number: c.Number, Typed: c.Typed, Started: c.Started,
		Unfinished: c.Unfinished, Unread: c.Unread, Unsure: c.Unsure, Ended: c.Ended, Over: c.Over}
}

// look returns the look that s was.
func (s *Seen) look() Look {
	l := Look{Facts: Facts{Foreground: s.Group, Pid: s.PID, Argv: s.Argv, ShellImage: s.Image,
		ShellIsForeground: s.InFront, Blocked: s.Blocked, Listens: s.Listens,
		OnlyTimers: s.OnlyTimers, Opaque: s.Opaque, Pending: s.Pending, Want: s.Want,
		Runs: s.Runs}, Shell: s.Shell, Alt: s.Alt, Blank: s.Blank, Before: s.Before,
		Line: s.Line, Calls: s.Calls, Answers: s.Answers, Anew: s.Anew}
	if s.Blind {
		l.Err = errReplayed
	}
	if s.Modes.Known {
		l.Modes = &Modes{Lines: s.Modes.Lines, Echo: s.Modes.Echo}
	}
	l.Said = Statement{Status: screen.Status(s.Said.Status), Count: s.Said.Count, At: s.Said.At,
		When: timeOf(s.Said.When)}
	if s.Inside.Is {
		l.Facts.Shell = &PromptShell{Name: s.Inside.Name, PID: s.Inside.PID, Image: s.Inside.Image}
	}
	return l
}
