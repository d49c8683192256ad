package session

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// How long a program that nobody can look at must be quiet for its caller to be told, by what else speaks for a question.
const (
	// secretTime is for a terminal that shows no input although it gathers lines: nobody does that but to ask for a secret.
	secretTime = idleReader
	// A terminal that gives keys as they come is taken for a listener's: restTime.
	// blindTime is for text before the cursor, which a question has and a progress line, too.
	blindTime = 2 * time.Second
	// silentTime is for silence alone.
	silentTime = 10 * time.Second
)

// blind is what is remembered between looks of a terminal whose programs may not be traced.
type blind struct {
	pid   int       // the one that was looked at
	runs  uint64    // how often it had been given a processor
	at    time.Time // when either was last seen to differ
	modes inputMode
	since time.Time // when the modes were first seen
}

// hint is what the screen says of a program that nobody can look at.
type hint struct {
	want  wire.Want     // empty when nothing speaks for a question
	after time.Duration // of quiet
	works bool          // a program that is given a processor is not quiet
	modes bool          // the terminal's modes say so: one that has just changed them is about to print what it asks
}

// judgeBlindLocked is the weakest layer: the kernel does not tell what the processes do, or they are elsewhere. It never
// says waiting, which is a fact. It says opaque, and that attention is likely, when the terminal's modes, the text before the
// cursor and silence speak for a question.
func (s *session) judgeBlindLocked(c *console, f Facts, err error, alt bool, prompt string) {
	if s.screenPromptLocked(c, alt, prompt) {
		return
	}
	if s.state.Phase != wire.PhaseRunning && s.state.Phase != wire.PhaseOpaque {
		return
	}
	now := time.Now()
	// One short program after the other is work, although each was given a processor as often as the one before.
	if f.Pid != s.blind.pid || f.Runs != s.blind.runs {
		s.blind.pid, s.blind.runs, s.blind.at = f.Pid, f.Runs, now
	}
	h := s.hintLocked(c, f, alt, prompt)
	quiet := s.quietLocked()
	if h.works {
		quiet = min(quiet, now.Sub(s.blind.at))
	}
	if h.modes {
		quiet = min(quiet, now.Sub(s.blind.since))
	}
	st := wire.State{Phase: wire.PhaseRunning, Reason: err.Error(), Cwd: f.ShellCwd, AltScreen: alt}
	if f.Pid != 0 {
		st.Foreground = &wire.Process{Pid: f.Pid, Argv: f.Argv}
	}
	switch {
	case quiet >= h.after:
		st.Phase, st.Attention, st.Want = wire.PhaseOpaque, "likely", h.want
		if h.want != "" {
			st.Prompt, st.Basis = prompt, append(st.Basis, wire.BasisScreen)
		}
		st.Basis = append(st.Basis, wire.BasisSilence)
	case c.marked:
		st.Basis = append(st.Basis, wire.BasisMark) // of the command's start
	default:
		st.Basis = append(st.Basis, wire.BasisSilence) // there was none
	}
	if st.Phase == wire.PhaseRunning && s.state.Phase == st.Phase && s.state.Reason == st.Reason && sameProcess(s.state.Foreground, st.Foreground) {
		return
	}
	s.tellLocked(st)
}

// hintLocked reads the screen layer. The modes of a local terminal belong to it: they are known without tracing anybody.
func (s *session) hintLocked(c *console, f Facts, alt bool, prompt string) hint {
	if s.without(wire.BasisScreen) {
		return hint{after: silentTime, works: true}
	}
	if c.local != nil {
		m := inputModes(c.local.TTY().Master)
		if m != s.blind.modes {
			s.blind.modes, s.blind.since = m, time.Now()
		}
		switch {
		case m.lines && !m.echo:
			return hint{want: wire.WantPassword, after: secretTime, modes: true}
		case !m.lines:
			f.Want = wire.WantRaw
			return hint{want: wantOf(f, alt), after: restTime, modes: true}
		}
	}
	switch {
	case alt:
		return hint{want: wire.WantFullscreen, after: restTime}
	case prompt != "":
		return hint{want: wire.WantLine, after: blindTime, works: true}
	}
	return hint{after: silentTime, works: true}
}
