package wire

import (
	"fmt"
	"slices"
	"strconv"
)

// Ended is the reason why a call returned.
type Ended string

const (
	Done      Ended = "done"       // the shell is at its prompt again; ExitCode is set
	Waiting   Ended = "waiting"    // a program waits for input
	Attention Ended = "attention"  // a program that reads keys while it works is idle
	Deadline  Ended = "deadline"   // still running at the timeout
	TakenOver Ended = "taken_over" // a person took the keyboard
	// Interrupted means that an interrupt of any party ended the command.
	Interrupted  Ended = "interrupted"
	Dead         Ended = "dead"         // the shell ended
	Continuation Ended = "continuation" // typed text left the shell at PS2
	Refused      Ended = "refused"      // the call did not run; Error says why
	Matched      Ended = "matched"      // the pattern of a wait was printed
	Returned     Ended = "returned"     // no person holds the keyboard that the call waited for
	// Lost means that the call ran or may have run, and its outcome is unknown; Error.Reason says
	// why.
	Lost Ended = "lost"
)

// Reasons why a call was lost. [Error.Reason] of an error with code lost has one, and Result.Notes
// repeats it.
const (
	LostStopped = "sandbox_stopped"  // the sandbox was stopped
	LostKilled  = "sandbox_killed"   // its processes were killed from outside
	LostMemory  = "oom_killed"       // the kernel killed its processes because memory ran out
	LostEngine  = "engine_restarted" // the container engine ended, and its containers with it
	LostHost    = "host_unreachable" // the connection to the host broke
	// LostGuest means that the guest that ran the call has ended; another one may answer.
	LostGuest   = "guest_died"
	LostRemoved = "sandbox_removed" // the sandbox was removed
	// LostPaused means that the sandbox was paused; the command continues when it is resumed.
	LostPaused = "sandbox_paused"
	// LostShell means that the call was repeated, and the shell of its first attempt has ended.
	LostShell = "shell_ended"
	// LostForgotten means that the call was repeated, and its result is no longer stored.
	LostForgotten = "result_forgotten"
	// LostRecord means that the sandbox requires a recording, and the output could not be recorded.
	LostRecord   = "record_failed"
	LostGateway  = "gateway_unreachable" // the connection to the daemon broke
	LostDetached = "detached"            // the party that made the call was disconnected
	// LostPartly means that part of the text was typed, or the shell did not confirm the command.
	LostPartly = "partly_done"
)

// Phase is what a session does.
type Phase string

const (
	PhasePrompt       Phase = "prompt"
	PhaseRunning      Phase = "running"
	PhaseWaiting      Phase = "waiting"
	PhaseContinuation Phase = "continuation"
	PhaseOpaque       Phase = "opaque"
	PhaseDead         Phase = "dead"
)

// Want is the kind of input that a program waits for.
type Want string

const (
	WantLine       Want = "line"
	WantPassword   Want = "password"
	WantRaw        Want = "raw"
	WantPager      Want = "pager"
	WantFullscreen Want = "fullscreen"
)

// Basis is a layer of evidence for a state, strongest first: exit, process, mark, screen, silence.
type Basis string

const (
	BasisExit    Basis = "exit"
	BasisProcess Basis = "process"
	BasisMark    Basis = "mark"
	BasisScreen  Basis = "screen"
	BasisSilence Basis = "silence"
)

// Process is the leader of the terminal's foreground group.
type Process struct {
	Pid  int      `json:"pid"`
	Argv []string `json:"argv"`
}

// Shell is an interactive shell that was started in the shell of a session, as by su or bash. Pid
// and Argv of one behind a relay such as ssh are the relay's.
type Shell struct {
	Pid   int      `json:"pid"`
	Name  string   `json:"name"` // of the shell, such as bash; Argv may say "-bash" or "busybox"
	Argv  []string `json:"argv"`
	User  string   `json:"user,omitempty"` // name, or number; empty behind a relay
	Depth int      `json:"depth"`          // 1 for a shell in the session's own, 2 for one in that
}

// State is what a session does, with the evidence, since an offset of its log.
type State struct {
	Phase Phase `json:"phase"`
	Want  Want  `json:"want,omitempty"` // when waiting
	// of the last command at the prompt, or of the dead shell
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal,omitempty"` // of the shell when dead, without SIG
	// why the shell is dead, or why a layer has no evidence
	Reason     string   `json:"reason,omitempty"`
	Cwd        string   `json:"cwd,omitempty"`        // of the shell
	Foreground *Process `json:"foreground,omitempty"` //
	Prompt     string   `json:"prompt,omitempty"`     // text before the cursor, when waiting
	// Shell is the shell at the prompt or running the command; nil for the session's own.
	Shell *Shell `json:"shell,omitempty"`
	// Program is the name of an interpreter, such as python3 or psql, that is at its own prompt.
	Program string `json:"program,omitempty"`
	// LooksLikeShell: a relay such as ssh is in front, and the text before the cursor looks like
	// the prompt of a shell behind it, which [Request.Adopt] can run commands in.
	LooksLikeShell bool `json:"looks_like_shell,omitempty"`
	// a program reads the keyboard while it works
	Listens   bool    `json:"listens,omitempty"`
	Attention string  `json:"attention,omitempty"`  // likely or no, with Listens
	QuietMS   int64   `json:"quiet_ms,omitempty"`   // milliseconds since the last byte of output
	Basis     []Basis `json:"basis"`                // layers that support it, strongest first
	Disputed  []Basis `json:"disputed,omitempty"`   // layers that contradict it
	Offset    uint64  `json:"offset"`               // offset in the log at its begin
	SinceUnix int64   `json:"since_unix_ms"`        // its begin, in milliseconds of Unix time
	LastLine  string  `json:"last_line,omitempty"`  // last line of text on the screen, bounded
	AltScreen bool    `json:"alt_screen,omitempty"` //
}

// NoteAdvisory is the note of a Result whose exit code only a mark supports: a program that has
// read the secret of marks could have printed it instead of the shell.
const NoteAdvisory = "advisory"

// Result reports what a call did and what the terminal does now. Its fields are the same in Go,
// JSON and every API.
type Result struct {
	Sandbox   string  `json:"sandbox"`
	Session   string  `json:"session"`
	Ended     Ended   `json:"ended"`
	Phase     Phase   `json:"phase"`
	Want      Want    `json:"want,omitempty"`
	Prompt    string  `json:"prompt"`
	ExitCode  *int    `json:"exit_code"`
	Signal    *string `json:"signal"`
	Listens   bool    `json:"listens"`
	Attention string  `json:"attention"` // likely or no
	QuietMS   int64   `json:"quiet_ms"`
	Notice    *string `json:"notice"`
	// rendered text; head and tail if it is too long
	Output     string   `json:"output"`
	Truncated  bool     `json:"truncated"` //
	From       uint64   `json:"from"`      // the call's bytes in the log: [From, To)
	To         uint64   `json:"to"`
	Cwd        string   `json:"cwd"`
	Foreground *Process `json:"foreground"`
	// Shell is the shell at the prompt or running the command; nil for the session's own.
	Shell *Shell `json:"shell"`
	// Program and LooksLikeShell: see [State].
	Program        string `json:"program,omitempty"`
	LooksLikeShell bool   `json:"looks_like_shell"`

	Basis     []Basis `json:"basis"`
	Disputed  []Basis `json:"disputed"`
	ElapsedMS int64   `json:"elapsed_ms"`
	Keyboard  string  `json:"keyboard"` // holder, as Party.String, or empty
	// Notes are further facts: Note constants, Lost constants, and reasons why a shell ended, such
	// as rescued and disk_full.
	Notes   []string `json:"notes"`
	Denied  []Denial `json:"denied"`
	Receipt *Receipt `json:"receipt"`
	Error   *Error   `json:"error"`

	// Screen is what the terminal shows, if Request.Screen asks for it.
	Screen *Screen `json:"screen"`

	// TakenOver says who took the keyboard, and when. It is set if that ended the call or was the
	// reason to reject it, and in a wait for the keyboard.
	TakenOver *Handover `json:"taken_over"`
}

// Values of Result.Notes. Some have a detail after a colon and a space.
const (
	NoteShellRestarted = "shell_restarted"  // the shell had ended; the call ran in a new one
	NoteTruncated      = "output_truncated" // Output is incomplete
	NoteDenied         = "denied_truncated" // Denied is incomplete: it has the newest connections
	NoteRest           = "output_rest"      // the detail is a command that prints the rest
	// NoteUnreadable means that Output is incomplete; the detail says why the log cannot be read.
	NoteUnreadable = "record_unreadable"
	NoteNoScreen   = "screen_omitted" // the screen is too large for a Result
	// NoteBackgroundJobs means that background jobs may have printed part of Output.
	NoteBackgroundJobs = "background_jobs"
	NoteOOMKilled      = "oom_killed" // during the call, in the sandbox; or why a shell ended
	NoteLimitPids      = "limit_pids" // during the call, in the sandbox
	// NoteShellEntered means that the call ended at the prompt of a shell in the former one, or ran
	// its command in one for the first time; NoteShellLeft that a shell ended in the call.
	NoteShellEntered = "shell_entered"
	NoteShellLeft    = "shell_left"
)

// Handover is the period in which people held the keyboard, since an agent last held it.
type Handover struct {
	// who held it, joined by ", "
	By     string `json:"by"`
	Offset uint64 `json:"offset"`          // log offset of its begin
	Until  uint64 `json:"until,omitempty"` // log offset of its end; 0 means that it lasts
	// commands that they typed, as far as the shell's marks report them
	Commands []Typed `json:"commands"`
}

// Typed is a command that a person typed at a prompt.
type Typed struct {
	By       string `json:"by"`
	Command  string `json:"command"` // text on the screen
	ExitCode *int   `json:"exit_code"`
}

// Denial is a connection that the sandbox's network policy blocked.
type Denial struct {
	Host string `json:"host"`
	Port int    `json:"port"`
	Why  string `json:"why"`
	// value to allow so that it is not blocked; empty if no value helps
	Allow string `json:"allow,omitempty"`
}

// Receipt reports what an interrupt did.
type Receipt struct {
	Steps []string `json:"steps"` // what was sent, in order, such as "^C", "TERM", "KILL"
	// processes that received TERM or KILL; IDs inside the sandbox
	Signaled []int `json:"signaled"`
	Died     []int `json:"died"`
	// running processes: of Signaled, and of those that the program started in new sessions
	Left []int `json:"left"`
}

// Code is the kind of an error. Go, JSON, the CLI and the docs use the same codes.
type Code string

const (
	CodeNotFound     Code = "not_found"     // no such sandbox or session for this caller
	CodeNotPrompt    Code = "not_prompt"    // the shell is not at its prompt
	CodeNotWaiting   Code = "not_waiting"   // an answer was sent, but no program asks
	CodeSyntax       Code = "syntax"        // the command is incomplete shell syntax
	CodeKeyboardHeld Code = "keyboard_held" // another party holds the keyboard
	CodeLineTooLong  Code = "line_too_long" // the line is longer than the terminal accepts
	// CodeLost means that the connection or the sandbox is gone, so the outcome of the call is
	// unknown.
	CodeLost        Code = "lost"
	CodeDenied      Code = "denied"      // the caller is not allowed to
	CodeUnavailable Code = "unavailable" // not possible here, or not now
	CodeUsage       Code = "usage"       // the arguments of the call are wrong
	CodeExists      Code = "exists"      // the name is in use
	// CodeInternal means that the daemon failed; the message has an ID to find in its log.
	CodeInternal       Code = "internal"
	CodeLimitSessions  Code = "limit_sessions"
	CodeLimitSandboxes Code = "limit_sandboxes"
	CodeLimitQuota     Code = "limit_quota" // the sandboxes of one owner have reached a quota
	CodeLimitPids      Code = "limit_pids"
	// CodeLimitPtys means that no pseudo-terminal is left in the sandbox or on its machine.
	CodeLimitPtys Code = "limit_ptys"
	CodeLimitOps  Code = "limit_ops" // too many calls on one session at the same time
)

// Error is an error that clients may see: a code to branch on, what happened, and what to do.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	// with CodeLost: a Lost constant
	Reason string `json:"reason,omitempty"`
	// of input: number of bytes that the terminal did not take
	Refused int `json:"refused,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is match by code: errors.Is(err, &Error{Code: CodeNotFound}).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// LostError returns the error of a call that ran or may have run, and whose outcome is unknown.
func LostError(reason, message string) *Error {
	e := &Error{Code: CodeLost, Message: message, Reason: reason}
	e.Hint = "it may have run: check its effects before you repeat it"
	return e
}

// LostResult returns the Result, without output, of a call that was lost on session t.
func LostResult(t Target, why *Error) *Result {
	r := &Result{
		Sandbox:   t.Sandbox,
		Session:   t.Session,
		Ended:     Lost,
		Phase:     PhaseOpaque,
		Attention: "no",
		Error:     why,
		Basis:     []Basis{},
		Disputed:  []Basis{},
		Notes:     []string{},
		Denied:    []Denial{},
	}
	if why.Reason != "" {
		r.Notes = append(r.Notes, why.Reason)
	}
	return r
}

// RefusedResult returns the Result of a call on session t that was rejected with the error why.
func RefusedResult(t Target, why *Error) *Result {
	return &Result{
		Sandbox:   t.Sandbox,
		Session:   t.Session,
		Ended:     Refused,
		Phase:     PhaseOpaque,
		Attention: "no",
		Error:     why,
		Basis:     []Basis{},
		Disputed:  []Basis{},
		Notes:     []string{},
		Denied:    []Denial{},
	}
}

// Errorf returns an *Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Exit codes of the command line, in addition to those of commands.
const (
	ExitUsage     = 2
	ExitWaiting   = 123 // waiting, attention, continuation
	ExitDeadline  = 124
	ExitFailed    = 125 // taken_over, lost, refused, or sandboxd failed
	ExitInterrupt = 130
	ExitTransport = 255
)

// MaxWhole is the maximal part of a log, in bytes, that is rendered for one Result.
const MaxWhole = 64 << 20

// maxFramed is the maximal output, in bytes, of a Result in a frame.
const maxFramed = 960 << 10

// Lacks reports whether r has less output than a caller asked for with Request.MaxOutput, because
// it did not fit the frame. The log has all of it, from From to To.
func (r *Result) Lacks(maxOutput int) bool {
	return r.Truncated && maxOutput != 0 &&
		(maxOutput < 0 || maxOutput > maxFramed || len(r.Output) < maxOutput/2)
}

// Complete sets the output of r to text that was rendered from the log from From to to. cut reports
// that its middle is omitted. missing says why a part could not be read; nil means that all was
// read.
func (r *Result) Complete(output string, cut bool, to uint64, missing error) {
	r.Output, r.Truncated = output, cut || to < r.To || missing != nil
	r.Notes = slices.DeleteFunc(
		slices.Clone(r.Notes),
		func(note string) bool { return note == NoteTruncated },
	)
	if r.Truncated {
		r.Notes = append(r.Notes, NoteTruncated)
	}
	if to < r.To {
		t := Target{Sandbox: r.Sandbox, Session: r.Session}
		r.Notes = append(
			r.Notes,
			fmt.Sprintf("%s: sandboxd log %s --from %d --to %d", NoteRest, t, to, r.To),
		)
	}
	if missing != nil {
		r.Unreadable(missing)
	}
}

// Unreadable adds a note that the rest of the output could not be read, and why.
func (r *Result) Unreadable(why error) {
	r.Notes = append(
		slices.Clip(r.Notes),
		fmt.Sprintf("%s: bytes %d to %d of the log: %v", NoteUnreadable, r.From, r.To, why),
	)
}

// ExitStatus returns the exit code of a command line tool for r.
func (r *Result) ExitStatus() int {
	switch r.Ended {
	case Done, Dead:
		if r.ExitCode != nil {
			return *r.ExitCode & 0xff
		}
		if r.Signal != nil {
			return 128 + SignalNumber(*r.Signal)
		}
		// on tier screen, the exit code of a command is unknown
		if r.Ended == Done {
			return 0
		}
		return ExitFailed
	case Waiting, Attention, Continuation:
		return ExitWaiting
	case Deadline:
		return ExitDeadline
	case Interrupted:
		return ExitInterrupt
	case Returned, Matched:
		return 0
	}
	return ExitFailed
}

// signalNumbers are Linux's numbers of the signals of RFC 4254, section 6.10, and of other common
// signals.
var signalNumbers = map[string]int{
	"HUP":    1,
	"INT":    2,
	"QUIT":   3,
	"ILL":    4,
	"TRAP":   5,
	"ABRT":   6,
	"BUS":    7,
	"FPE":    8,
	"KILL":   9,
	"USR1":   10,
	"SEGV":   11,
	"USR2":   12,
	"PIPE":   13,
	"ALRM":   14,
	"TERM":   15,
	"CHLD":   17,
	"CONT":   18,
	"STOP":   19,
	"TSTP":   20,
	"TTIN":   21,
	"TTOU":   22,
	"URG":    23,
	"XCPU":   24,
	"XFSZ":   25,
	"VTALRM": 26,
	"PROF":   27,
	"WINCH":  28,
	"IO":     29,
	"PWR":    30,
	"SYS":    31,
}

// SignalNumber returns Linux's number for a signal name without SIG, or for digits as SignalName
// returns them; 0 if unknown.
func SignalNumber(name string) int {
	if n, err := strconv.ParseUint(name, 10, 8); err == nil && n <= maxSignal {
		return int(n)
	}
	return signalNumbers[name]
}

const maxSignal = 64 // SIGRTMAX of signal(7)

// SignalName returns the name without SIG, or the number in digits if it is unknown.
func SignalName(number int) string {
	for name, n := range signalNumbers {
		if n == number {
			return name
		}
	}
	return fmt.Sprint(number)
}
