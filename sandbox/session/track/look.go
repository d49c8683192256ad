package track

import (
	"path/filepath"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// staleTime is how long after a write a reader that has not run since is taken for one that has
	// not been woken yet.
	staleTime = 50 * time.Millisecond
	// restTime is how long a program that listens beside its work must be quiet to have come to
	// rest.
	restTime = 700 * time.Millisecond
	// idleReader is the same for one whose only company is in timed futexes, as in every Go and
	// Java program.
	idleReader = 100 * time.Millisecond
	// settledLooks is how many looks in a row have to find the shell reading before a line that was
	// edited at its prompt, and not ended, is taken for edited.
	settledLooks = 3
	// markTime is how long a mark may be on its way: printed by the shell, which reads again, and
	// not yet come out of the terminal. On a busy machine that takes more than a few looks.
	markTime = 25 * time.Millisecond
	// promiseTime is how long a shell that printed its prompt may do something else before it
	// reads: after that, the mark was printed by what runs in it.
	promiseTime = time.Second
)

// Modes say what a terminal does with input.
type Modes struct {
	Lines bool // it gathers lines before a program reads them
	Echo  bool // it shows them
}

// Look is what was seen of a terminal at one moment, at which nothing was printed nor typed.
type Look struct {
	Facts Facts
	// Why the processes cannot be seen; then of Facts only Pid, Argv, Runs and ShellCwd count.
	Err   error
	Shell int // process ID of the shell; 0 if it is not known

	Alt    bool   // the alternate screen is on
	Before string // text before the cursor
	Line   uint64 // where in the log the cursor's line begins; for ByScreen alone
	Modes  *Modes // of the terminal; nil if they are not known

	Said  Statement // the program's last of itself
	Calls uint64    // for attention, so far

	Answers bool // the terminal has answers to queries that nobody has read
	Anew    bool // looks before it do not count: there was output, or a new waiter
}

// Look makes what was seen the state. It reports whether another look is worth while soon: to
// confirm it, or because something is under way.
func (t *Tracker) Look(l Look, at Moment) (again bool, news News) {
	t.at = at
	if l.Anew {
		t.agreed = 0
	}
	if cmd := t.command; cmd != nil && !cmd.Typed || t.state.Phase == wire.PhaseDead {
		// The shell is still at the prompt before it, and does not say so of the next.
		return true, News{}
	}
	if l.Err != nil {
		(&judge{t, l}).blind()
		return false, t.tell()
	}
	f := l.Facts
	stale := f.Blocked && f.Reader() == t.before && at.Time.Sub(t.typed) < staleTime
	if stale || f.Pending || l.Answers && l.gathersNoLines() {
		t.agreed = 0
		return true, News{}
	}
	again = (&judge{t, l}).processes()
	return again, t.tell()
}

func (l *Look) gathersNoLines() bool { return l.Modes == nil || !l.Modes.Lines }

// judge makes a state of one look.
type judge struct {
	*Tracker
	l Look
}

// processes makes what was seen of the processes the state, or returns true if another look has to
// confirm it.
func (t *judge) processes() (again bool) {
	l, f := t.l, t.l.Facts
	// What a key of the line editor started may be in the shell's own group, and read the terminal
	// in its place.
	f.ShellIsForeground = f.ShellIsForeground && f.Pid == l.Shell
	if done, again := t.shell(f); done {
		return again
	}
	st := wire.State{Phase: wire.PhaseRunning, Foreground: &wire.Process{Pid: f.Pid, Argv: f.Argv},
		Cwd: f.ShellCwd, AltScreen: l.Alt, Basis: []wire.Basis{wire.BasisProcess}}
	switch {
	case f.Opaque:
		st.Phase, st.Reason, st.Prompt = wire.PhaseOpaque, f.Why, l.Before
		if f.Want == wire.WantPassword {
			// Lines that are not shown are a question: keys are passed on as they come.
			st.Want = f.Want
		}
		if t.Quiet(t.at.Time) >= restTime {
			st.Attention, st.Basis = likely, append(st.Basis, wire.BasisSilence)
		}
	case f.Blocked:
		st.Phase, st.Want, st.Prompt = wire.PhaseWaiting, wantOf(f, l.Alt), l.Before
		if f.ShellIsForeground && !t.opt.Marked && !t.opt.Program {
			st.Reason = "the shell prints no marks: whether this is its prompt is not known"
		}
	case f.Listens:
		st.Listens, st.Want, st.Prompt, st.Attention = true, wantOf(f, l.Alt), l.Before, "no"
		t.listener = listener{group: f.Foreground, at: t.at.Time}
		if t.rests() {
			st.Attention, st.Basis = likely, append(st.Basis, wire.BasisScreen)
		}
	case t.stirs(f):
		return false
	}
	away := t.atPrompt() && f.ShellIsForeground && st.Phase == wire.PhaseRunning
	if (t.doubt || away) && t.phase == wire.PhasePrompt {
		st.Disputed = []wire.Basis{wire.BasisMark}
	}
	t.agreed = 0
	t.found(st)
	return false
}

// shell judges a shell that is in front, as far as its marks count. done says that this is
// all.
func (t *judge) shell(f Facts) (done, again bool) {
	now := t.at.Time
	sinceMS := now.UnixMilli() - t.state.SinceUnix
	switch {
	case !f.ShellIsForeground:
		return false, false
	case t.atPrompt() && !f.Blocked && sinceMS < promiseTime.Milliseconds():
		return true, false // it is about to read the line that its mark promised
	case t.Expecting() && (f.Blocked || f.Listens):
		return true, false // its prompt has begun, and is taken for complete soon: see Tick
	case f.Opaque || !f.Blocked:
		return false, false
	case t.opt.Marked && t.phase != wire.PhaseRunning:
		// It reads a line: it is where its last mark said. Input has been edited, or the mark came
		// while another group was in front.
		t.agreed++
		if t.state.Phase == t.phase && t.agreed < settledLooks {
			return true, true
		}
		if t.state.Phase == t.phase || !t.markDue() {
			t.settle()
		}
		return true, false
	}
	// It reads the way it does at its prompt. Bash edits lines there, and reads them whole for its
	// read.
	likePrompt := !t.opt.ReadsLines || t.l.gathersNoLines()
	return t.opt.Marked && likePrompt && t.markDue(), false
}

// atPrompt reports whether the shell is at a prompt of its own.
func (t *Tracker) atPrompt() bool {
	return t.state.Phase == wire.PhasePrompt || t.state.Phase == wire.PhaseContinuation
}

// markDue reports whether a mark may still be on its way.
func (t *judge) markDue() bool { return t.Quiet(t.at.Time) < markTime }

// settle makes the state what the shell's last mark said, now that it is known to read a line.
func (t *judge) settle() {
	basis := []wire.Basis{wire.BasisProcess, wire.BasisMark}
	if t.phase != t.state.Phase {
		switch t.phase {
		case wire.PhasePrompt:
			t.ready(basis)
		case wire.PhaseContinuation:
			t.become(wire.State{Phase: wire.PhaseContinuation, Basis: basis})
		}
	}
	t.verdict()
}

// verdict notes that a look found something that callers wait for.
func (t *Tracker) verdict() {
	t.counts.Verdicts++
	t.news.Changed = true
}

// found makes st the state unless it is already, and counts it as a verdict if callers wait for one
// like it.
func (t *judge) found(st wire.State) {
	is := t.state
	attention := st.Listens == is.Listens && st.Attention == is.Attention
	same := st.Phase == is.Phase && st.Want == is.Want && st.Prompt == is.Prompt && attention &&
		sameProcess(st.Foreground, is.Foreground)
	switch {
	case same:
	case st.Phase == wire.PhaseRunning && is.Phase == wire.PhaseRunning && attention:
		// Another program, or another look at the same one: the state changes without an event.
		st.Offset, st.SinceUnix = is.Offset, is.SinceUnix
		t.state = st
	default:
		t.become(st)
	}
	if st.Phase == wire.PhaseWaiting || st.Attention == likely {
		t.verdict()
	}
}

// sameProcess compares arguments, too: a child that was just forked has its shell's.
func sameProcess(a, b *wire.Process) bool {
	return a == b || a != nil && b != nil && a.Pid == b.Pid && slices.Equal(a.Argv, b.Argv)
}

// pagers are programs whose raw mode means turning pages.
var pagers = map[string]bool{"less": true, "more": true, "most": true, "pg": true, "man": true}

// wantOf is the kind of input that the program of f wants.
func wantOf(f Facts, alt bool) wire.Want {
	switch {
	case f.Want == wire.WantRaw && len(f.Argv) > 0 && pagers[filepath.Base(f.Argv[0])]:
		return wire.WantPager
	case f.Want == wire.WantRaw && alt:
		return wire.WantFullscreen
	}
	return f.Want
}
