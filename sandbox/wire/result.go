package wire

import (
	"fmt"
	"slices"
)

// Ended says why a call came back.
type Ended string

const (
	Done         Ended = "done"         // the shell is at its prompt again; ExitCode is set
	Waiting      Ended = "waiting"      // a program waits for input
	Attention    Ended = "attention"    // a listening program has come to rest
	Deadline     Ended = "deadline"     // still running when the caller's time was up
	TakenOver    Ended = "taken_over"   // a person took the keyboard
	Interrupted  Ended = "interrupted"  // ended by an interrupt that the caller or another party asked for
	Dead         Ended = "dead"         // the shell ended
	Continuation Ended = "continuation" // typed text left the shell at PS2
	Refused      Ended = "refused"      // nothing was done, for certain; Error says why
	Matched      Ended = "matched"      // of a wait for a pattern: it was printed
	Returned     Ended = "returned"     // of a wait for the keyboard: no person holds it
	Lost         Ended = "lost"         // it was begun, or may have been, and how it ended is not known; Error.Reason says why
)

// Why a call was lost: [Error.Reason] of an error with code lost, and one of Result.Notes.
const (
	LostStopped   = "sandbox_stopped"     // somebody stopped the sandbox
	LostKilled    = "sandbox_killed"      // its processes were killed from outside
	LostMemory    = "oom_killed"          // the kernel killed it: it had no memory left
	LostEngine    = "engine_restarted"    // the container engine ended, and its containers with it
	LostHost      = "host_unreachable"    // the connection to the host broke
	LostGuest     = "guest_died"          // the guest that had the call has ended; another one may answer
	LostRemoved   = "sandbox_removed"     //
	LostPaused    = "sandbox_paused"      // what was begun goes on when the sandbox is resumed
	LostShell     = "shell_ended"         // the shell that the call was first given to has ended
	LostForgotten = "result_forgotten"    // the session remembers that the call was made, and no longer its result
	LostRecord    = "record_failed"       // its output could not be recorded, as the sandbox demands
	LostGateway   = "gateway_unreachable" // the connection to the daemon broke
	LostDetached  = "detached"            // the party that made the call was disconnected
	LostPartly    = "partly_done"         // some of it was typed, or the shell does not say whether it took the command
)

// Phase is what a session is doing.
type Phase string

const (
	PhasePrompt       Phase = "prompt"
	PhaseRunning      Phase = "running"
	PhaseWaiting      Phase = "waiting"
	PhaseContinuation Phase = "continuation"
	PhaseOpaque       Phase = "opaque"
	PhaseDead         Phase = "dead"
)

// Want is the kind of input that a waiting program wants.
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

// State is what a session is doing, why we say so, and since which offset of its log.
type State struct {
	Phase      Phase    `json:"phase"`
	Want       Want     `json:"want,omitempty"`       // when waiting
	ExitCode   *int     `json:"exit_code"`            // of the last command when at prompt; of the shell when dead
	Signal     string   `json:"signal,omitempty"`     // of the shell when dead, without SIG
	Reason     string   `json:"reason,omitempty"`     // why dead, or why a layer could not tell
	Cwd        string   `json:"cwd,omitempty"`        // of the shell
	Foreground *Process `json:"foreground,omitempty"` //
	Prompt     string   `json:"prompt,omitempty"`     // text before the cursor, when waiting
	Listens    bool     `json:"listens,omitempty"`    // a program reads the keyboard beside its work
	Attention  string   `json:"attention,omitempty"`  // likely or no, for one that listens
	QuietMS    int64    `json:"quiet_ms,omitempty"`   // age of the last byte of output
	Basis      []Basis  `json:"basis"`                // layers that agree, strongest first
	Disputed   []Basis  `json:"disputed,omitempty"`   // layers that do not
	Offset     uint64   `json:"offset"`               // where in the log it became true
	SinceUnix  int64    `json:"since_unix_ms"`        // when, in milliseconds of Unix time
	LastLine   string   `json:"last_line,omitempty"`  // last line of text on the screen, bounded
	AltScreen  bool     `json:"alt_screen,omitempty"` //
}

// NoteAdvisory is the note of a Result whose exit code only a mark of the shell vouches for: nothing else shows that the shell printed
// it, and not a program that has read the mark's secret.
const NoteAdvisory = "advisory"

// Result is what one call did and what the terminal does now. Its fields are the same in Go, JSON and every door.
type Result struct {
	Sandbox    string   `json:"sandbox"`
	Session    string   `json:"session"`
	Ended      Ended    `json:"ended"`
	Phase      Phase    `json:"phase"`
	Want       Want     `json:"want,omitempty"`
	Prompt     string   `json:"prompt"`
	ExitCode   *int     `json:"exit_code"`
	Signal     *string  `json:"signal"`
	Listens    bool     `json:"listens"`
	Attention  string   `json:"attention"` // likely or no
	QuietMS    int64    `json:"quiet_ms"`
	Notice     *string  `json:"notice"`
	Output     string   `json:"output"`    // as a person would read it, head and tail where it was too long
	Truncated  bool     `json:"truncated"` //
	From       uint64   `json:"from"`      // the call's bytes in the log: [From, To)
	To         uint64   `json:"to"`
	Cwd        string   `json:"cwd"`
	Foreground *Process `json:"foreground"`
	Basis      []Basis  `json:"basis"`
	Disputed   []Basis  `json:"disputed"`
	ElapsedMS  int64    `json:"elapsed_ms"`
	Keyboard   string   `json:"keyboard"` // holder, as Party.String, or empty
	Notes      []string `json:"notes"`    // what else there is to know: the Note constants, the Lost reasons, advisory, or why a shell died: rescued, disk_full
	Denied     []Denial `json:"denied"`
	Receipt    *Receipt `json:"receipt"`
	Error      *Error   `json:"error"`

	// Screen is what the terminal shows, where Request.Screen asks for it.
	Screen *Screen `json:"screen"`

	// TakenOver says who took the keyboard when: of a call that ended by it, of one that was refused because of it, and of a
	// wait for the keyboard.
	TakenOver *Handover `json:"taken_over"`
}

// Notes of a Result. One with a detail has it behind a colon and a space.
const (
	NoteShellRestarted = "shell_restarted"   // the shell had ended: this is a fresh one
	NoteTruncated      = "output_truncated"  // Output is not all that was printed
	NoteDenied         = "denied_truncated"  // Denied has the newest connections only
	NoteRest           = "output_rest"       // the command that prints the rest
	NoteUnreadable     = "record_unreadable" // all of the output was wanted, and why it cannot be read
	NoteNoScreen       = "screen_omitted"    // the screen was too large to go with the Result
	NoteBackgroundJobs = "background_jobs"   // jobs in the background may have printed some of Output
	NoteOOMKilled      = "oom_killed"        // meanwhile, in the sandbox; or of what a shell died
	NoteLimitPids      = "limit_pids"        // meanwhile, in the sandbox
)

// Handover is a stretch of a session in which people had the keyboard, since an agent last had it.
type Handover struct {
	By       string  `json:"by"`              // who took it; of several who had it in turn, all, by ", "
	Offset   uint64  `json:"offset"`          // from where in the log
	Until    uint64  `json:"until,omitempty"` // up to where; 0 while it goes on
	Commands []Typed `json:"commands"`        // what they gave the shell to do, as far as its marks tell
}

// Typed is a command that somebody typed at a prompt.
type Typed struct {
	By       string `json:"by"`
	Command  string `json:"command"` // as it stood on the screen
	ExitCode *int   `json:"exit_code"`
}

// Denial is a connection that the sandbox's network policy refused.
type Denial struct {
	Host  string `json:"host"`
	Port  int    `json:"port"`
	Why   string `json:"why"`
	Allow string `json:"allow,omitempty"` // what to allow so that it is not refused, for whoever may; empty where nothing helps
}

// Receipt lists what an interrupt did.
type Receipt struct {
	Steps    []string `json:"steps"`    // what was sent, in order: "^C", "TERM", "KILL"
	Signaled []int    `json:"signaled"` // by TERM or KILL; process IDs, as seen inside the sandbox
	Died     []int    `json:"died"`
	Left     []int    `json:"left"` // alive: of those, and of what the program had started in sessions of their own
}

// Code names what went wrong. These words and no others appear in Go, JSON, CLI and docs.
type Code string

const (
	CodeNotFound       Code = "not_found"      // no such sandbox or session for this caller
	CodeNotPrompt      Code = "not_prompt"     // the shell is not at its prompt
	CodeNotWaiting     Code = "not_waiting"    // an answer was given, and nobody asks
	CodeSyntax         Code = "syntax"         // the command is not complete shell syntax
	CodeKeyboardHeld   Code = "keyboard_held"  // another party holds the keyboard
	CodeLineTooLong    Code = "line_too_long"  // a line longer than the terminal takes
	CodeLost           Code = "lost"           // the connection or the sandbox is gone, and what was under way with it
	CodeDenied         Code = "denied"         // the caller may not
	CodeUnavailable    Code = "unavailable"    // asked for and not to be had here
	CodeUsage          Code = "usage"          // the call itself is wrong
	CodeExists         Code = "exists"         // the name is taken
	CodeInternal       Code = "internal"       // a fault of ours; the message carries an id to find in the log
	CodeLimitSessions  Code = "limit_sessions" //
	CodeLimitSandboxes Code = "limit_sandboxes"
	CodeLimitQuota     Code = "limit_quota" // what the sandboxes of one owner may have together
	CodeLimitPids      Code = "limit_pids"
	CodeLimitPtys      Code = "limit_ptys" // pseudo-terminals: of the sandbox, or of its machine
	CodeLimitOps       Code = "limit_ops"  // too many operations under way on one session
)

// Error is an error that a stranger may see: a code to branch on, what happened, and what to do.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Reason  string `json:"reason,omitempty"`  // of code lost: why, one of LostStopped and the others
	Refused int    `json:"refused,omitempty"` // of input: bytes that the terminal did not take
}

func (e *Error) Error() string { return e.Message }

// Is makes errors.Is match by code: errors.Is(err, &Error{Code: CodeNotFound}).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Message == ""
}

// LostError is the error of a call that was begun, or may have been, and whose end is not known.
func LostError(reason, message string) *Error {
	e := &Error{Code: CodeLost, Message: message, Reason: reason}
	e.Hint = "it may have run: look at what it does before you repeat it"
	return e
}

// LostResult is the Result of a call that was lost on session t, without output.
func LostResult(t Target, why *Error) *Result {
	r := &Result{Sandbox: t.Sandbox, Session: t.Session, Ended: Lost, Phase: PhaseOpaque, Attention: "no", Error: why,
		Basis: []Basis{}, Disputed: []Basis{}, Notes: []string{}, Denied: []Denial{}}
	if why.Reason != "" {
		r.Notes = append(r.Notes, why.Reason)
	}
	return r
}

// RefusedResult is the Result of a call that was not made on session t, because of why.
func RefusedResult(t Target, why *Error) *Result {
	return &Result{Sandbox: t.Sandbox, Session: t.Session, Ended: Refused, Phase: PhaseOpaque, Attention: "no", Error: why,
		Basis: []Basis{}, Disputed: []Basis{}, Notes: []string{}, Denied: []Denial{}}
}

// Errorf returns an *Error with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Exit codes of the command line besides a command's own.
const (
	ExitUsage     = 2
	ExitWaiting   = 123 // waiting, attention, continuation
	ExitDeadline  = 124
	ExitFailed    = 125 // taken_over, lost, refused, or sandboxd failed
	ExitInterrupt = 130
	ExitTransport = 255
)

// MaxWhole is the most of a log, in bytes, that is rendered for one Result.
const MaxWhole = 64 << 20

// maxFramed is the most output that a Result has which came in a frame.
const maxFramed = 960 << 10

// Lacks reports whether r has less of its output than a caller wanted, by Request.MaxOutput: what did not fit the frame
// in which it came is in the log, from From up to To.
func (r *Result) Lacks(maxOutput int) bool {
	return r.Truncated && maxOutput != 0 && (maxOutput < 0 || maxOutput > maxFramed || len(r.Output) < maxOutput/2)
}

// Complete makes output what r has, which was rendered of the log from From up to to, cut says with its middle left out.
// missing says why some of it could not be read; nil is that all could be.
func (r *Result) Complete(output string, cut bool, to uint64, missing error) {
	r.Output, r.Truncated = output, cut || to < r.To || missing != nil
	r.Notes = slices.DeleteFunc(slices.Clone(r.Notes), func(note string) bool { return note == NoteTruncated })
	if r.Truncated {
		r.Notes = append(r.Notes, NoteTruncated)
	}
	if to < r.To {
		t := Target{Sandbox: r.Sandbox, Session: r.Session}
		r.Notes = append(r.Notes, fmt.Sprintf("%s: sandboxd log %s --from %d --to %d", NoteRest, t, to, r.To))
	}
	if missing != nil {
		r.Unreadable(missing)
	}
}

// Unreadable notes that more of the output was wanted, and why it could not be read.
func (r *Result) Unreadable(why error) {
	r.Notes = append(slices.Clip(r.Notes), fmt.Sprintf("%s: bytes %d to %d of the log: %v", NoteUnreadable, r.From, r.To, why))
}

// ExitStatus is the exit code that a command line tool ends with for r.
func (r *Result) ExitStatus() int {
	switch r.Ended {
	case Done, Dead:
		if r.ExitCode != nil {
			return *r.ExitCode & 0xff
		}
		if r.Signal != nil {
			return 128 + SignalNumber(*r.Signal)
		}
		if r.Ended == Done { // where only the screen tells of the prompt: it is over, and how is not known
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

// signalNumbers are Linux's numbers for the signals of RFC 4254, section 6.10, and the others in common use.
var signalNumbers = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20,
	"TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28, "IO": 29, "PWR": 30, "SYS": 31}

// SignalNumber returns Linux's number for a signal name without SIG, 0 if unknown.
func SignalNumber(name string) int { return signalNumbers[name] }

// SignalName returns the name without SIG, or the number in digits if it has none here.
func SignalName(number int) string {
	for name, n := range signalNumbers {
		if n == number {
			return name
		}
	}
	return fmt.Sprint(number)
}
