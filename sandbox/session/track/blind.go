package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// How long a program whose processes cannot be seen must be quiet before it counts as asking, by
// the other evidence of a question. A terminal that gives keys as they come is taken for a
// listener's: restTime.
const (
	// SecretTime is for a terminal that shows no input although it gathers lines: nobody does that
	// but to ask for a secret. It is the least of them.
	SecretTime = idleReader
	// blindTime is for text before the cursor, which a question has and a progress line, too.
	blindTime = 2 * time.Second
	// silentTime is for silence alone.
	silentTime = 10 * time.Second
	// promptQuiet is how long what looks like a prompt must stand: it may be the beginning of a
	// line.
	promptQuiet = 150 * time.Millisecond
)

// unseen is what is remembered between looks of a terminal whose programs may not be traced.
type unseen struct {
	pid   int       // the one that was looked at
	runs  uint64    // how often it had been given a processor
	at    time.Time // when either was last seen to differ
	modes Modes
	since time.Time // when the modes were first seen
}

// hint is what the screen says of a program that nobody can look at.
type hint struct {
	want  wire.Want     // empty when nothing speaks for a question
	after time.Duration // of quiet
	works bool          // a program that is given a processor is not quiet
	// The terminal's modes say so: who has just changed them is about to print a question.
	modes bool
}

// blind is the weakest layer: the kernel does not tell what the processes do, or they are
// elsewhere. It never says waiting, which is a fact. It says opaque, and that attention is likely,
// when the terminal's modes, the text before the cursor and silence speak for a question.
func (t *judge) blind() {
	if t.screenPrompt() {
		return
	}
	if t.state.Phase != wire.PhaseRunning && t.state.Phase != wire.PhaseOpaque {
		return
	}
	l, f, now := t.l, t.l.Facts, t.at.Time
	// One short program after the other is work, although each was given a processor as often as
	// the one before.
	if f.Pid != t.unseen.pid || f.Runs != t.unseen.runs {
		t.unseen.pid, t.unseen.runs, t.unseen.at = f.Pid, f.Runs, now
	}
	h := t.hint()
	quiet := t.Quiet(now)
	if h.works {
		quiet = min(quiet, now.Sub(t.unseen.at))
	}
	if h.modes {
		quiet = min(quiet, now.Sub(t.unseen.since))
	}
	st := wire.State{Phase: wire.PhaseRunning, Reason: l.Err.Error(), Cwd: f.ShellCwd,
		AltScreen: l.Alt}
	if f.Pid != 0 {
		st.Foreground = &wire.Process{Pid: f.Pid, Argv: f.Argv}
	}
	switch {
	case quiet >= h.after:
		st.Phase, st.Attention, st.Want = wire.PhaseOpaque, likely, h.want
		if h.want != "" {
			st.Prompt, st.Basis = l.Before, append(st.Basis, wire.BasisScreen)
		}
		st.Basis = append(st.Basis, wire.BasisSilence)
	case t.opt.Marked:
		st.Basis = append(st.Basis, wire.BasisMark) // of the command's start
	default:
		st.Basis = append(st.Basis, wire.BasisSilence) // there was none
	}
	is := t.state
	if st.Phase == wire.PhaseRunning && is.Phase == st.Phase && is.Reason == st.Reason &&
		sameProcess(is.Foreground, st.Foreground) {
		return
	}
	t.found(st)
}

// hint reads the screen layer. The modes of a local terminal belong to it: they are known without
// tracing anybody.
func (t *judge) hint() hint {
	l := t.l
	if t.opt.NoScreen {
		return hint{after: silentTime, works: true}
	}
	if m := l.Modes; m != nil {
		if *m != t.unseen.modes {
			t.unseen.modes, t.unseen.since = *m, t.at.Time
		}
		switch {
		case m.Lines && !m.Echo:
			return hint{want: wire.WantPassword, after: SecretTime, modes: true}
		case !m.Lines:
			f := l.Facts
			f.Want = wire.WantRaw
			return hint{want: wantOf(f, l.Alt), after: restTime, modes: true}
		}
	}
	switch {
	case l.Alt:
		return hint{want: wire.WantFullscreen, after: restTime}
	case l.Before != "":
		return hint{want: wire.WantLine, after: blindTime, works: true}
	}
	return hint{after: silentTime, works: true}
}

// ByScreen reports whether the prompt of the shell is known by the screen alone: the shell prints
// no marks and nobody can look at its processes, as of network gear or a restricted account. Then a
// command can be run by typing it: it is over when the next prompt stands before the cursor. Its
// exit code is not known, and a program that prints such a line is taken for the shell.
func (t *Tracker) ByScreen() bool { return !t.opt.Marked && !t.opt.Program && t.opt.Prompt != nil }

// screenPrompt makes prompt the state, or running, by what stands before the cursor. It reports
// whether that is all there is to say.
func (t *judge) screenPrompt() bool {
	l := t.l
	if !t.ByScreen() || t.opt.NoScreen || t.reads == 0 {
		return false // what is on the screen is not this terminal's
	}
	cmd := t.command
	if cmd != nil && !cmd.Started {
		return true // it is being typed
	}
	stands := !l.Alt && l.Before != "" && t.opt.Prompt(l.Before)
	// What has been typed since is not answered yet, not even by its echo.
	answered := t.reads > t.answered
	switch {
	case stands && answered && t.state.Phase == wire.PhasePrompt:
		return true
	case stands && answered && t.Quiet(t.at.Time) >= promptQuiet:
		t.phase = wire.PhasePrompt
		t.counts.Prompted++
		t.over, t.overAt = t.counts.Prompted, l.Line
		if cmd != nil && !cmd.Ended {
			t.ends(cmd, max(cmd.From, t.overAt))
		}
		t.ready([]wire.Basis{wire.BasisScreen})
		t.verdict()
		return true
	case !stands && t.state.Phase == wire.PhasePrompt:
		t.phase = wire.PhaseRunning
		t.become(wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{wire.BasisScreen}})
	}
	return false
}
