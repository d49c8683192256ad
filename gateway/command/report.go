package command

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// report prints the meaning of the Result to stderr, and returns its exit code.
func (env *Env) report(t wire.Target, r *wire.Result) error {
	say := func(format string, args ...any) {
		fmt.Fprintln(env.Stderr, text.Lines(fmt.Sprintf(format, args...)))
	}
	for _, note := range r.Notes {
		switch note {
		case wire.NoteShellRestarted:
			note = "the shell had ended; this is a new one"
		case wire.NoteBackgroundJobs:
			note = "background jobs may have printed some of this"
		case wire.NoteTruncated:
			note = "the middle of the output is omitted; for all of it: sandboxd log " + t.String()
		case wire.NoteShellEntered:
			if r.Shell == nil {
				continue // it was left again
			}
			note = fmt.Sprintf("commands run in %s now", shellName(r.Shell))
			if r.Shell.Depth > 0 {
				note += fmt.Sprintf(", inside the former shell; to leave it: sandboxd run -n %s -- "+
					"exit", t)
			}
		case wire.NoteShellLeft:
			note = "that shell has ended, or was stopped; commands run in " + shellName(r.Shell) + " again"
		case wire.NoteAdvisory:
			continue // every command on a host without visible processes has it; --json prints it
		}
		say("note: %s", text.Line(note, 200))
	}
	if r.Ended == wire.Done && slices.Contains(r.Disputed, wire.BasisMark) {
		say("note: a program imitates the shell's marks: the exit code may be forged")
	}
	env.reportDenied(say, t, r.Denied)
	switch r.Ended {
	case wire.Waiting, wire.Attention:
		asks := fmt.Sprintf("%s waits for %s", foreground(r), wants(r.Want))
		if prompt := text.Line(r.Prompt, 200); strings.TrimSpace(prompt) != "" {
			asks += ": " + prompt
		}
		say("%s\n  answer: %s", asks, howToAnswer(r.Want, t))
		if r.LooksLikeShell {
			say("  it looks like a shell: sandboxd run -n %s --adopt -- CMD", t)
		}
	case wire.Continuation:
		say("the shell waits for the rest of the command\n  cancel it: sandboxd interrupt %s", t)
	case wire.Deadline:
		if r.Phase == wire.PhasePrompt || r.Phase == wire.PhaseDead { // --kill
			say("timeout: the command was interrupted")
			break
		}
		say("timeout: %s still runs\n  wait: sandboxd wait %s   stop: sandboxd interrupt %s",
			foreground(r), t, t)
	case wire.TakenOver:
		say("%s took the keyboard; the command still runs\n"+
			"  wait for the keyboard: sandboxd wait %s --for keyboard", dash(r.Keyboard), t)
	case wire.Returned:
		if r.TakenOver != nil {
			say("%s no longer holds the keyboard; state of %s: %s", r.TakenOver.By, t, r.Phase)
		}
	case wire.Dead:
		say("the shell of %s ended; the next command starts a new one", t)
	case wire.Refused, wire.Lost:
		if r.Error != nil {
			return r.Error
		}
	}
	return exitStatus(r)
}

// shellName returns how a nested shell is shown, by its command line and user; nil is the session's
// own.
func shellName(sh *wire.Shell) string {
	if sh == nil {
		return "the session's own shell"
	}
	name := text.Line(strings.Join(sh.Argv, " "), 60)
	if sh.User != "" {
		name += " as " + text.Line(sh.User, 32)
	}
	return name
}

func exitStatus(r *wire.Result) error {
	if code := r.ExitStatus(); code != 0 {
		return exitError(code)
	}
	return nil
}

func foreground(r *wire.Result) string {
	if r.Foreground == nil || len(r.Foreground.Argv) == 0 {
		return "the program"
	}
	if isShell(r.Foreground.Argv) {
		return "the shell" // such as in its builtin read
	}
	return text.Line(strings.Join(r.Foreground.Argv, " "), 60)
}

// isShell reports whether a command line starts an interactive shell, without a script or command.
func isShell(argv []string) bool {
	switch strings.TrimPrefix(filepath.Base(argv[0]), "-") {
	case "sh", "bash", "dash", "ash", "zsh", "fish", "ksh":
		return len(argv) == 1 || argv[len(argv)-1] == "-i"
	}
	return false
}

// howToAnswer returns the command that answers a program. A password is read from a file, because
// arguments are visible in the process list and in the shell's history.
func howToAnswer(w wire.Want, t wire.Target) string {
	switch w {
	case wire.WantPassword:
		return fmt.Sprintf("sandboxd type -n %s --stdin <FILE", t)
	case wire.WantRaw, wire.WantFullscreen, wire.WantPager:
		return fmt.Sprintf("sandboxd keys -n %s KEY…   see it: sandboxd screen %s", t, t)
	}
	return fmt.Sprintf("sandboxd type -n %s TEXT", t)
}

func wants(w wire.Want) string {
	switch w {
	case wire.WantPassword:
		return "a password"
	case wire.WantRaw, wire.WantFullscreen, wire.WantPager:
		return "keys"
	}
	return "a line"
}

func withNewline(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// showScreen prints the screen of a Result, if it has one, and its size and cursor to stderr.
func (env *Env) showScreen(s *wire.Screen) {
	if s == nil {
		return
	}
	said := fmt.Sprintf("screen: %d columns, %d rows, cursor in column %d of row %d",
		s.Cols, s.Rows, s.CursorX+1, s.CursorY+1)
	if title := text.Line(s.Title, 200); strings.TrimSpace(title) != "" {
		said += ", title " + title
	}
	fmt.Fprintln(env.Stderr, said)
	fmt.Fprint(env.Stdout, withNewline(text.Lines(s.Text)))
}
