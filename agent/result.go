package agent

import "time"

// Result says what a call did, and what the terminal does now. It has the same fields in Go and in
// JSON; docs/reference/json.md explains them with examples.
type Result struct {
	Sandbox string `json:"sandbox"` // name of the sandbox
	Session string `json:"session"` // name of the session in it

	// Ended says why the call returned, and Phase what the session does now.
	Ended Ended `json:"ended"`
	Phase Phase `json:"phase"`

	// Want is the kind of input that the program waits for, and Prompt the text in front of the
	// cursor. Want is empty unless Phase is PhaseWaiting.
	Want   Want   `json:"want,omitempty"`
	Prompt string `json:"prompt"`

	// ExitCode is the exit code of the command, or of the shell when that ended. nil means that
	// there is none. See [Result.Code].
	ExitCode *int `json:"exit_code"`

	// Signal names the signal that ended the shell, without SIG. nil means that none did.
	Signal *string `json:"signal"`

	// Listens reports that a program reads the keyboard beside its work, as an editor or a pager
	// does. Attention is then "likely" when it has come to rest, else "no".
	Listens   bool   `json:"listens"`
	Attention string `json:"attention"`

	QuietMS int64   `json:"quiet_ms"` // milliseconds since the last byte of output
	Notice  *string `json:"notice"`   // what the program itself says of its state; nil means nothing

	// Output is what the call printed, as a person would read it: redrawn lines collapsed, escape
	// sequences removed. Of output longer than [Call.MaxOutput] it has the head and the tail, and
	// Truncated is set. From and To are the offsets of its bytes in the session's log; To is
	// exclusive.
	Output    string `json:"output"`
	Truncated bool   `json:"truncated"`
	From      uint64 `json:"from"`
	To        uint64 `json:"to"`

	Cwd        string   `json:"cwd"`        // working directory of the shell
	Foreground *Process `json:"foreground"` // the program in front; nil where it is not known

	// Basis are the layers of evidence that the state rests on, strongest first, and Disputed those
	// that disagree.
	Basis    []Basis `json:"basis"`
	Disputed []Basis `json:"disputed"`

	ElapsedMS int64    `json:"elapsed_ms"` // how long the call took
	Keyboard  string   `json:"keyboard"`   // who holds the keyboard, such as "person:alice"; empty means nobody
	Notes     []string `json:"notes"`      // what else there is to know: a Note constant, a Lost constant, or why a shell died
	Denied    []Denial `json:"denied"`     // connections that the sandbox's network policy blocked during the call
	Receipt   *Receipt `json:"receipt"`    // what an interrupt did; nil for other calls
	Error     *Error   `json:"error"`      // why the call was refused or lost; nil otherwise

	// Screen is what the terminal shows, if [Call.Screen] asks for it.
	Screen *Screen `json:"screen"`

	// TakenOver says who took the keyboard, and when: of a call that ended by it, of a call that
	// was refused because of it, and of [Shell.WaitKeyboard].
	TakenOver *Handover `json:"taken_over"`
}

// Code returns the exit code of the command, or of the shell when that ended. ok is false when
// there is none: the command still runs, a signal ended it, or the terminal does not tell.
func (r Result) Code() (code int, ok bool) {
	if r.ExitCode == nil {
		return 0, false
	}
	return *r.ExitCode, true
}

// Elapsed is how long the call took.
func (r Result) Elapsed() time.Duration { return time.Duration(r.ElapsedMS) * time.Millisecond }

// Ended says why a call returned.
type Ended string

// Reasons for which a call returns.
const (
	EndedDone         Ended = "done"         // the command ended: the shell is at its prompt, and Result.Code has its exit code
	EndedWaiting      Ended = "waiting"      // a program waits for input: Result.Want and Result.Prompt say for what
	EndedAttention    Ended = "attention"    // a program that listens beside its work, such as an editor, has come to rest
	EndedDeadline     Ended = "deadline"     // the time was up; the program still runs
	EndedMatched      Ended = "matched"      // of a wait for a pattern: it was printed
	EndedTakenOver    Ended = "taken_over"   // a person took the keyboard; the program goes on
	EndedInterrupted  Ended = "interrupted"  // an interrupt ended the command
	EndedDead         Ended = "dead"         // the shell ended
	EndedContinuation Ended = "continuation" // the shell waits for the rest of an unfinished command
	EndedReturned     Ended = "returned"     // of a wait for the keyboard: no person holds it
	EndedRefused      Ended = "refused"      // nothing was done, for certain; Result.Error says why
	EndedLost         Ended = "lost"         // it was begun, or may have been, and how it ended is not known; Result.Error says why
)

// Notes in Result.Notes. A note with a detail has it behind a colon and a space.
const (
	NoteAdvisory       = "advisory"          // only the shell's own mark vouches for the exit code
	NoteShellRestarted = "shell_restarted"   // the shell had ended: this is a fresh one
	NoteTruncated      = "output_truncated"  // Output is not all that was printed
	NoteDenied         = "denied_truncated"  // Denied has the newest connections only
	NoteRest           = "output_rest"       // the command that prints the rest of the output
	NoteUnreadable     = "record_unreadable" // all of the output was wanted, and why it cannot be read
	NoteNoScreen       = "screen_omitted"    // the screen was too large for a Result
	NoteBackgroundJobs = "background_jobs"   // jobs in the background may have printed some of Output
	NoteOOMKilled      = "oom_killed"        // the kernel ended a process of the sandbox for lack of memory
	NoteLimitPids      = "limit_pids"        // a process could not be started: the sandbox has as many as it may have
)

// Screen is what a terminal shows.
type Screen struct {
	Text      string `json:"text"` // rows joined by newlines, without blanks at their ends and blank rows at the end
	Cols      int    `json:"cols"`
	Rows      int    `json:"rows"`
	CursorX   int    `json:"cursor_x"` // column of the cursor, from 0
	CursorY   int    `json:"cursor_y"` // row of the cursor, from 0
	Visible   bool   `json:"cursor_visible"`
	AltScreen bool   `json:"alt_screen"`        // a program draws the whole screen
	Title     string `json:"title,omitempty"`   // title of the window, as the program set it
	Offset    uint64 `json:"offset"`            // in the log: the screen shows all output before it
	Stopped   bool   `json:"stopped,omitempty"` // the sandbox is stopped: this is its last screen
}

// ShowScreen says when a Result has the screen. The zero value is ScreenAuto.
type ShowScreen string

// When a Result has the screen.
const (
	ScreenAuto   ShowScreen = "auto"   // while a program draws the whole screen, is a pager, or listens and has come to rest
	ScreenAlways ShowScreen = "always" //
	ScreenNever  ShowScreen = "never"  //
)

// Handover is a time in which people had the keyboard, since an agent last had it.
type Handover struct {
	By       string         `json:"by"`              // who took it; several who had it in turn are joined by ", "
	Offset   uint64         `json:"offset"`          // where in the log it began
	Until    uint64         `json:"until,omitempty"` // where it ended; 0 while it lasts
	Commands []TypedCommand `json:"commands"`        // what they gave the shell, as far as its marks tell
}

// TypedCommand is a command that somebody typed at the shell's prompt.
type TypedCommand struct {
	By       string `json:"by"`
	Command  string `json:"command"`   // as it stood on the screen
	ExitCode *int   `json:"exit_code"` // nil means that it is not known
}

// Denial is a connection that the sandbox's network policy blocked.
type Denial struct {
	Host  string `json:"host"`
	Port  int    `json:"port"`
	Why   string `json:"why"`
	Allow string `json:"allow,omitempty"` // what to add to Spec.Allow so that it is not blocked; empty where nothing helps
}

// Receipt lists what an interrupt did. Process IDs are those inside the sandbox.
type Receipt struct {
	Steps    []string `json:"steps"`    // what was sent, in order: "^C", "TERM", "KILL"
	Signaled []int    `json:"signaled"` // processes that got TERM or KILL
	Died     []int    `json:"died"`     // those of them that ended
	Left     []int    `json:"left"`     // processes of the program that are still alive
}
