package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// How long a program whose processes cannot be inspected must be quiet before it counts as asking.
// The time depends on the other evidence of a question. In raw mode it is restTime.
const (
	// SecretTime is for a terminal in line mode without echo. Programs use that only to ask for a
	// secret. It is the shortest of these times.
	SecretTime = idleReader
	// blindTime is for text before the cursor, which may be a question or a progress line.
	blindTime = 2 * time.Second
	// silentTime is for silence without other evidence.
	silentTime = 10 * time.Second
	// promptQuiet is how long text that looks like a prompt must stay. It may be the start of a
	// longer line.
	promptQuiet = 150 * time.Millisecond
)

// unseen is what looks remember of a terminal whose processes cannot be inspected.
type unseen struct {
	pid   int       // process of the last look
	runs  uint64    // how often it had been given a processor
	at    time.Time // when pid or runs last changed
	modes Modes
	since time.Time // when the modes last changed
}

// hint is what the screen says of a program whose processes cannot be inspected.
type hint struct {
	want  wire.Want     // empty if nothing suggests a question
	after time.Duration // how long the program must be quiet
	works bool          // a program that was given a processor is not quiet
	// modes: the evidence is the terminal's modes. A program that has just changed them has yet to
	// print its question.
	modes bool
}

// blind judges a look without process facts: tracing is not allowed, or the processes run
// elsewhere. It never returns waiting, which needs facts. It returns opaque, with attention likely,
// if modes, the text before the cursor and silence suggest a question.
func (t *judge) blind() {
	if t.screenPrompt() {
		return
	}
	if t.state.Phase != wire.PhaseRunning && t.state.Phase != wire.PhaseOpaque {
		return
	}
	l, f, now := t.l, t.l.Facts, t.at.Time
	// A series of short programs is work, although each was given a processor as often as the last.
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
		st.LooksLikeShell = t.opt.Relayed && !l.Alt && looksLikePrompt(l.Before)
		if h.want != "" {
			st.Prompt, st.Basis = l.Before, append(st.Basis, wire.BasisScreen)
		}
		st.Basis = append(st.Basis, wire.BasisSilence)
	case t.opt.Marked:
		st.Basis = append(st.Basis, wire.BasisMark) // the start mark of the command
	default:
		st.Basis = append(st.Basis, wire.BasisSilence) // there is no start mark
	}
	is := t.state
	if st.Phase == wire.PhaseRunning && is.Phase == st.Phase && is.Reason == st.Reason &&
		sameProcess(is.Foreground, st.Foreground) {
		return
	}
	t.found(st)
}

// hint reads the screen. It also uses the modes of a local terminal, which are known without
// tracing.
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
		case !m.Lines && !l.Blank:
			f := l.Facts
			f.Want = wire.WantRaw
			return hint{want: wantOf(f, l.Alt), after: restTime, modes: true}
		}
	}
	switch {
	case l.Alt && !l.Blank:
		return hint{want: wire.WantFullscreen, after: restTime}
	case l.Before != "":
		return hint{want: wire.WantLine, after: blindTime, works: true}
	}
	return hint{after: silentTime, works: true}
}

// ByScreen reports whether only the screen can show the prompt of the shell: the shell prints no
// marks, and its prompt is known. Network gear and restricted accounts are like that. A command is
// then run by typing it, and ends when the next prompt is before the cursor. Its exit code is not
// known. A program that prints such a line is taken for the shell.
func (t *Tracker) ByScreen() bool { return !t.opt.Marked && !t.opt.Program && t.opt.Prompt != nil }

// screenPrompt sets the state to prompt or running by the text before the cursor. It returns true
// if the look needs no further judgement.
func (t *judge) screenPrompt() bool {
	l := t.l
	if !t.ByScreen() || t.opt.NoScreen || t.reads == 0 {
		// The screen may still show the output of the last terminal.
		return false
	}
	cmd := t.command
	if cmd != nil && !cmd.Started {
		// The command is being typed.
		return true
	}
	stands := !l.Alt && l.Before != "" && t.opt.Prompt(l.Before)
	// Without output since the last input, the input has no answer yet, not even its echo.
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
