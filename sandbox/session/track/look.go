package track

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// staleTime is how long after a write an unchanged reader counts as not woken yet.
	staleTime = 50 * time.Millisecond
	// restTime is how long a program that listens while it works must be quiet to count as at rest.
	restTime = 700 * time.Millisecond
	// idleReader is the same for a program whose other threads all wait in timed futexes, as in
	// every Go and Java program.
	idleReader = 100 * time.Millisecond
	// settledLooks is how many successive looks must find the shell reading after input that did
	// not end its line. Then the line counts as edited.
	settledLooks = 3
	// markTime is how long a mark may take from the shell to us. The shell may read again before
	// its mark arrives. On a busy machine that takes longer than a few looks.
	markTime = 25 * time.Millisecond
	// promiseTime is how long a shell that printed its prompt may take until it reads. After that,
	// the mark came from a program that runs in the shell.
	promiseTime = time.Second
)

// Modes say how a terminal treats input.
type Modes struct {
	// the terminal collects a line before a program can read it
	Lines bool `json:"lines,omitempty"`
	Echo  bool `json:"echo,omitempty"` // the terminal shows input
}

// Look is what was seen of a terminal while nothing was printed or typed.
type Look struct {
	Facts Facts
	// Err says why the processes cannot be inspected. Then only Pid, Argv, Runs and ShellCwd of
	// Facts are valid.
	Err   error
	Shell int // process ID of the shell, 0 if not known

	Alt    bool   // the alternate screen is on
	Blank  bool   // the alternate screen is on, and shows no character
	Before string // text before the cursor
	Line   uint64 // log offset at which the cursor's line begins; set only if ByScreen
	Modes  *Modes // modes of the terminal, nil if not known

	Said  Statement // last statement of the program about itself
	Calls uint64    // how often programs have called for attention

	Answers bool // answers to terminal queries are pending
	Anew    bool // earlier looks do not count: there was output, or a new caller waits
}

// Look updates the state from a look. again is true if another look is useful soon: to confirm the
// result, or because something is under way.
func (t *Tracker) Look(l Look, at Moment) (again bool, news News) {
	if t.ring != nil {
		t.ring.room()
	}
	prompts := t.opt.Prompt != nil && t.opt.Prompt(l.Before)
	again, news = look(t, l, at)
	t.noteLook(&l, at, prompts, len(news.Events) > 0)
	return again, news
}

func look(t *Tracker, l Look, at Moment) (again bool, news News) {
	t.at = at
	if l.Anew {
		t.agreed = 0
	}
	if cmd := t.command; cmd != nil && !cmd.Typed || t.state.Phase == wire.PhaseDead {
		// The command is not typed yet, so the shell is still at the last prompt. Its next prompt
		// prints its own mark.
		return true, News{}
	}
	if t.opt.Relayed && l.Facts.Opaque {
		// The modes are the relay's, and its process tells nothing about the shell.
		l.Err, l.Modes = errRelayed, nil
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

// judge derives a state from one look.
type judge struct {
	*Tracker
	l Look
}

// processes updates the state from process facts. It returns true if another look must confirm
// them.
func (t *judge) processes() (again bool) {
	l, f := t.l, t.l.Facts
	// A key binding of the line editor may start a program in the shell's own group, which then
	// reads the terminal.
	f.ShellIsForeground = f.ShellIsForeground && f.Pid == l.Shell
	if done, again := t.shell(f); done {
		return again
	}
	st := wire.State{Phase: wire.PhaseRunning, Foreground: &wire.Process{Pid: f.Pid, Argv: f.Argv},
		Cwd: f.ShellCwd, AltScreen: l.Alt, Basis: []wire.Basis{wire.BasisProcess}}
	program := ""
	if f.Blocked || f.Listens {
		program = interpreter(f.Argv, l.Before)
	}
	switch {
	case f.Opaque:
		st.Phase, st.Reason, st.Prompt = wire.PhaseOpaque, f.Why, l.Before
		st.LooksLikeShell = !l.Alt && looksLikePrompt(l.Before)
		if f.Want == wire.WantPassword {
			// A program that forwards keys uses raw mode. Line mode without echo is a question of
			// its own, such as ssh's password prompt.
			st.Want = f.Want
		}
		if t.Quiet(t.at.Time) >= restTime {
			st.Attention, st.Basis = likely, append(st.Basis, wire.BasisSilence)
		}
	case t.entered(f):
		st.Phase, st.Prompt, st.Cwd = wire.PhasePrompt, l.Before, f.FgCwd
		st.Shell = &wire.Shell{Pid: f.Pid, Name: f.Shell.Name, Argv: f.Argv, User: f.Shell.User,
			Depth: t.opt.Depth}
		if f.Pid != l.Shell {
			st.Shell.Depth++
		}
		if cmd := t.command; cmd != nil && cmd.Typed && !cmd.Started {
			// Another program has read it, or a part of it.
			t.command, cmd.Over, cmd.Unsure = nil, true, true
			t.giveUp(cmd)
			t.emit(wire.Event{Kind: wire.EventResult, Op: cmd.Op, By: cmd.By, Why: wire.Lost})
		}
	case f.Blocked:
		st.Phase, st.Want, st.Prompt, st.Program = wire.PhaseWaiting, wantOf(f, l.Alt), l.Before,
			program
		if f.ShellIsForeground && !t.opt.Marked && !t.opt.Program {
			st.Reason = "the shell prints no marks: whether this is its prompt is not known"
		}
	case f.Listens && program != "":
		// Such as node, which also handles timers and connections at its prompt.
		st.Phase, st.Want, st.Prompt, st.Program = wire.PhaseWaiting, wantOf(f, l.Alt), l.Before,
			program
		st.Basis = append(st.Basis, wire.BasisScreen)
	case f.Listens:
		st.Listens, st.Want, st.Prompt, st.Attention = true, wantOf(f, l.Alt), l.Before, "no"
		t.listens(f.Foreground)
		if t.rests() {
			t.listener.rested = t.Epoch() + 1
			st.Attention, st.Basis = likely, append(st.Basis, wire.BasisScreen)
		}
	case t.stirs(f):
		return false
	default:
		t.worker = worker{group: f.Foreground, at: t.at.Time}
	}
	away := t.atPrompt() && f.ShellIsForeground && st.Phase == wire.PhaseRunning
	if (t.doubt || away) && t.phase == wire.PhasePrompt {
		st.Disputed = []wire.Basis{wire.BasisMark}
	}
	t.agreed = 0
	t.found(st)
	return false
}

// errRelayed is why the processes behind a relay cannot be inspected.
var errRelayed = errors.New("the shell is behind a relay")

// looksLikePrompt reports whether text, before the cursor, looks like the prompt of a shell. The
// prompts of databases and interpreters do not.
func looksLikePrompt(text string) bool {
	text = strings.TrimRight(text, " ")
	for _, end := range []string{"$", "#", "%", "❯", "➜", "»"} {
		if before, found := strings.CutSuffix(text, end); found {
			return !strings.HasSuffix(before, "=") && !strings.HasSuffix(before, "-")
		}
	}
	// As fish's "user@host ~>".
	before, found := strings.CutSuffix(text, ">")
	return found && strings.ContainsAny(before, "@~/") && !strings.HasSuffix(before, ">")
}

// entered reports whether another shell than the tracker's own is at its prompt: one that was
// started in it, or has replaced it. A shell that prints a mark for each command has printed one
// for that. Otherwise another process has taken the terminal from the shell's prompt.
func (t *judge) entered(f Facts) bool {
	replaced := f.ShellImage != t.image && f.ShellImage != 0 && t.image != 0
	started := t.phase == wire.PhaseRunning || !t.opt.Marked || !t.opt.TypedMarks
	return f.Blocked && f.Shell != nil && (f.Pid != t.l.Shell || replaced) && started &&
		!t.opt.Program
}

// shell judges a shell in the foreground, as far as its marks count. done is true if the look needs
// no further judgement.
func (t *judge) shell(f Facts) (done, again bool) {
	now := t.at.Time
	sinceMS := now.UnixMilli() - t.state.SinceUnix
	switch {
	case !f.ShellIsForeground:
		return false, false
	case t.atPrompt() && !f.Blocked && sinceMS < promiseTime.Milliseconds():
		// The shell has printed its prompt's mark and is about to read.
		return true, false
	case t.Expecting() && (f.Blocked || f.Listens):
		// The prompt has started, and Tick takes it for complete soon.
		return true, false
	case f.Opaque || !f.Blocked:
		return false, false
	case t.opt.Marked && t.phase != wire.PhaseRunning:
		t.image = cmp.Or(t.image, f.ShellImage)
		// The shell reads a line, so it is where its last mark said. Either the line was edited, or
		// another group was in the foreground when the mark arrived.
		t.agreed++
		if t.state.Phase == t.phase && t.agreed < settledLooks {
			return true, true
		}
		if t.state.Phase == t.phase || !t.markDue() {
			t.settle()
		}
		return true, false
	}
	// The shell reads in the mode it uses at its prompt. Bash edits lines there, but uses line mode
	// for its builtin read.
	likePrompt := !t.opt.ReadsLines || t.l.gathersNoLines()
	return t.opt.Marked && likePrompt && t.markDue(), false
}

// atPrompt reports whether the shell is at a prompt of its own.
func (t *judge) atPrompt() bool {
	return t.state.Phase == wire.PhasePrompt || t.state.Phase == wire.PhaseContinuation
}

// markDue reports whether a mark may not have arrived yet.
func (t *judge) markDue() bool { return t.Quiet(t.at.Time) < markTime }

// settle sets the state to what the shell's last mark said. The shell is known to read a line.
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

// verdict records that a look found something callers wait for.
func (t *judge) verdict() {
	t.counts.Verdicts++
	t.news.Changed = true
}

// found sets the state to st if that differs. It counts a verdict if st is something callers wait
// for.
func (t *judge) found(st wire.State) {
	is := t.state
	attention := st.Listens == is.Listens && st.Attention == is.Attention
	same := st.Phase == is.Phase && st.Want == is.Want && st.Prompt == is.Prompt && attention &&
		sameProcess(st.Foreground, is.Foreground)
	switch {
	case same:
	case st.Phase == wire.PhaseRunning && is.Phase == wire.PhaseRunning && attention:
		// Another program, or the same one again, is not worth an event.
		st.Offset, st.SinceUnix = is.Offset, is.SinceUnix
		t.state = st
	default:
		if st.Phase == wire.PhasePrompt {
			endLeft(t.Tracker)
			t.news.Rests = true
		}
		t.become(st)
	}
	if st.Phase == wire.PhaseWaiting || st.Phase == wire.PhasePrompt || st.Attention == likely {
		t.verdict()
	}
}

// sameProcess also compares arguments: a child that was just forked has those of its shell.
func sameProcess(a, b *wire.Process) bool {
	return a == b || a != nil && b != nil && a.Pid == b.Pid && slices.Equal(a.Argv, b.Argv)
}

// pagers are programs that use raw mode to turn pages.
var pagers = map[string]bool{"less": true, "more": true, "most": true, "pg": true, "man": true}

// wantOf returns the kind of input that the program of f wants.
func wantOf(f Facts, alt bool) wire.Want {
	switch {
	case f.Want == wire.WantRaw && len(f.Argv) > 0 && pagers[filepath.Base(f.Argv[0])]:
		return wire.WantPager
	case f.Want == wire.WantRaw && alt:
		return wire.WantFullscreen
	}
	return f.Want
}
