package agent

import "time"

// Result reports what a call did and what the terminal does now. It has the same fields in Go and
// in JSON. docs/reference/json.md explains them with examples.
type Result struct {
	Sandbox string `json:"sandbox"` // name of the sandbox
	Session string `json:"session"` // name of the session in it

	// Ended says why the call returned. Phase says what the session does now.
	Ended Ended `json:"ended"`
	Phase Phase `json:"phase"`

	// Want is the kind of input that the program waits for; it is empty unless Phase is
	// PhaseWaiting. Prompt is the text left of the cursor.
	Want   Want   `json:"want,omitempty"`
	Prompt string `json:"prompt"`

	// ExitCode is the exit code of the command, or of the shell if the shell ended. nil means none.
	// See [Result.Code].
	ExitCode *int `json:"exit_code"`

	// Signal is the name, without SIG, of the signal that ended the shell. nil means none.
	Signal *string `json:"signal"`

	// Listens reports that a program reads the keyboard while it works, such as an editor or a
	// pager. Attention is "likely" if such a program has become idle, else "no".
	Listens   bool   `json:"listens"`
	Attention string `json:"attention"`

	QuietMS int64   `json:"quiet_ms"` // milliseconds since the last byte of output
	Notice  *string `json:"notice"`   // the program's own status text; nil means none

	// Output is what the call printed, as text: redrawn lines are collapsed, escape sequences
	// removed. If it is longer than [Call.MaxOutput], Output has its head and tail, and Truncated
	// is true. From and To are the offsets of its bytes in the session's log. To is exclusive.
	Output    string `json:"output"`
	Truncated bool   `json:"truncated"`
	From      uint64 `json:"from"`
	To        uint64 `json:"to"`

	Cwd        string   `json:"cwd"`        // working directory of the shell
	Foreground *Process `json:"foreground"` // the foreground program; nil means unknown

	// Shell is the shell that is at its prompt or runs the command, if it was started in the
	// session's own: by su, bash and the like. nil means the session's own shell.
	Shell *NestedShell `json:"shell"`

	// Program and LooksLikeShell: see [State].
	Program        string `json:"program,omitempty"`
	LooksLikeShell bool   `json:"looks_like_shell"`

	// Basis lists the layers of evidence that support the state, strongest first. Disputed lists
	// those that contradict it.
	Basis    []Basis `json:"basis"`
	Disputed []Basis `json:"disputed"`

	ElapsedMS int64  `json:"elapsed_ms"` // duration of the call in milliseconds
	Keyboard  string `json:"keyboard"`   // who holds it, such as "person:alice"; empty means free

	// Notes are further facts: Note constants, Lost constants, and reasons why a shell ended.
	Notes []string `json:"notes"`

	// Denied lists connections that the sandbox's network policy blocked during the call.
	Denied []Denial `json:"denied"`

	Receipt *Receipt `json:"receipt"` // what an interrupt did; nil for other calls
	Error   *Error   `json:"error"`   // why the call was rejected or lost; nil otherwise

	// Screen is what the terminal shows. nil means that [Call.Screen] does not ask for it.
	Screen *Screen `json:"screen"`

	// TakenOver says who took the keyboard, and when. It is set if that ended the call or was the
	// reason to reject it, if the call waited for the keyboard, and by [Shell.WaitKeyboard].
	TakenOver *Handover `json:"taken_over"`
}

// Code returns the exit code of the command, or of the shell if the shell ended. ok is false if
// there is none: the command still runs, a signal ended the shell, or the exit code is unknown.
func (r Result) Code() (code int, ok bool) {
	if r.ExitCode == nil {
		return 0, false
	}
	return *r.ExitCode, true
}

// Elapsed returns the duration of the call.
func (r Result) Elapsed() time.Duration { return time.Duration(r.ElapsedMS) * time.Millisecond }

// Ended is the reason why a call returned.
type Ended string

// Reasons why a call returns.
const (
	// EndedDone means that the command ended and the shell is at its prompt. Result.Code returns
	// the exit code. A command that starts a shell, such as su, is done at the prompt of that shell
	// and has no exit code.
	EndedDone Ended = "done"
	// EndedWaiting means that a program waits for input. Result.Want and Result.Prompt describe it.
	EndedWaiting Ended = "waiting"
	// EndedAttention means that a program which reads the keyboard while it works, such as an
	// editor, has become idle.
	EndedAttention   Ended = "attention"
	EndedDeadline    Ended = "deadline"    // the timeout expired; the program still runs
	EndedMatched     Ended = "matched"     // the pattern of a wait was printed
	EndedTakenOver   Ended = "taken_over"  // a person took the keyboard; the program continues
	EndedInterrupted Ended = "interrupted" // an interrupt ended the command
	EndedDead        Ended = "dead"        // the shell ended
	// EndedContinuation means that the shell waits for the rest of an incomplete command.
	EndedContinuation Ended = "continuation"
	EndedReturned     Ended = "returned" // no person holds the keyboard that the call waited for
	EndedRefused      Ended = "refused"  // the call did not run; Result.Error says why
	// EndedLost means that the call ran or may have run, and its outcome is unknown. Result.Error
	// says why.
	EndedLost Ended = "lost"
)

// Values of Result.Notes. Some have a detail after a colon and a space.
const (
	// NoteAdvisory means that only a mark that the shell printed supports the exit code.
	NoteAdvisory       = "advisory"
	NoteShellRestarted = "shell_restarted"  // the shell had ended; the call ran in a new one
	NoteTruncated      = "output_truncated" // Output is incomplete
	NoteDenied         = "denied_truncated" // Denied is incomplete: it has the newest connections
	// NoteRest means that the detail is a command that prints the rest of the output.
	NoteRest = "output_rest"
	// NoteUnreadable means that Output is incomplete; the detail says why the log cannot be read.
	NoteUnreadable = "record_unreadable"
	NoteNoScreen   = "screen_omitted" // the screen is too large for a Result
	// NoteBackgroundJobs means that background jobs may have printed part of Output.
	NoteBackgroundJobs = "background_jobs"
	// NoteOOMKilled means that the kernel killed a process of the sandbox because memory ran out.
	NoteOOMKilled = "oom_killed"
	// NoteLimitPids means that a process could not be started: the sandbox has reached its limit of
	// processes.
	NoteLimitPids = "limit_pids"
	// NoteShellEntered means that the command started a shell, which is at its prompt, or ran in
	// one for the first time. NoteShellLeft means that such a shell ended.
	NoteShellEntered = "shell_entered"
	NoteShellLeft    = "shell_left"
)

// Screen is what a terminal shows.
type Screen struct {
	// Text has the rows, joined by newlines, without trailing blanks and trailing empty rows.
	Text string `json:"text"`

	Cols      int    `json:"cols"`
	Rows      int    `json:"rows"`
	CursorX   int    `json:"cursor_x"` // column of the cursor, from 0
	CursorY   int    `json:"cursor_y"` // row of the cursor, from 0
	Visible   bool   `json:"cursor_visible"`
	AltScreen bool   `json:"alt_screen"`      // a program uses the alternate screen
	Title     string `json:"title,omitempty"` // window title that the program set
	Offset    uint64 `json:"offset"`          // offset in the log up to which the screen is drawn

	// BracketedPaste means that a program has switched bracketed paste mode on: it takes text
	// between ESC [ 200 ~ and ESC [ 201 ~ as one paste, also if it has several lines.
	BracketedPaste bool `json:"bracketed_paste,omitempty"`

	Stopped bool `json:"stopped,omitempty"` // the sandbox is stopped; this is its last screen
}

// ShowScreen says when [Result.Screen] is set. The zero value means ScreenAuto.
type ShowScreen string

// Values of ShowScreen.
const (
	// ScreenAuto means that the foreground program uses the alternate screen, is a pager, or reads
	// the keyboard while it works and has become idle.
	ScreenAuto   ShowScreen = "auto"
	ScreenAlways ShowScreen = "always" // in every Result
	ScreenNever  ShowScreen = "never"  // in no Result
)

// Handover is the period in which people held the keyboard, since an agent last held it.
type Handover struct {
	By     string `json:"by"`              // who held it, such as "person:alice", joined by ", "
	Offset uint64 `json:"offset"`          // offset in the log at its begin
	Until  uint64 `json:"until,omitempty"` // offset in the log at its end; 0 means that it lasts

	// Commands are the commands that they typed, as far as the shell's marks report them.
	Commands []TypedCommand `json:"commands"`
}

// TypedCommand is a command that a person typed at the shell's prompt.
type TypedCommand struct {
	By       string `json:"by"`
	Command  string `json:"command"`   // the text on the screen
	ExitCode *int   `json:"exit_code"` // nil means unknown
}

// Denial is a connection that the sandbox's network policy blocked.
type Denial struct {
	Host string `json:"host"`
	Port int    `json:"port"`
	Why  string `json:"why"`
	// value to add to Spec.Allow to allow it; empty if no value does
	Allow string `json:"allow,omitempty"`
}

// Receipt reports what an interrupt did. Process IDs are those inside the sandbox.
type Receipt struct {
	Steps    []string `json:"steps"`    // what was sent, in order, such as "^C", "TERM", "KILL"
	Signaled []int    `json:"signaled"` // processes that received TERM or KILL
	Died     []int    `json:"died"`     // processes of Signaled that ended
	Left     []int    `json:"left"`     // processes of the program that still run
}
