package agent

// State says what a session does, since when, and on what evidence.
type State struct {
	Phase Phase `json:"phase"`
	Want  Want  `json:"want,omitempty"` // kind of input, while a program waits for it
	// Exit code of the last command at the prompt, or of the shell if it ended. nil means none.
	ExitCode *int   `json:"exit_code"`
	Signal   string `json:"signal,omitempty"` // signal that ended the shell, without SIG
	// why the shell ended, or why a layer has no evidence
	Reason string `json:"reason,omitempty"`
	Cwd    string `json:"cwd,omitempty"` // working directory of the shell
	// the foreground program; nil means unknown
	Foreground *Process `json:"foreground,omitempty"`
	// text left of the cursor, while a program waits
	Prompt string `json:"prompt,omitempty"`
	// the shell that is at its prompt or runs the command; nil means the session's own
	Shell *NestedShell `json:"shell,omitempty"`

	// Program is the name of an interpreter, such as python3, node or psql, that is at its own
	// prompt and takes a statement: not while the statement asks for something. Otherwise it is
	// empty.
	Program string `json:"program,omitempty"`

	// LooksLikeShell means that a relay such as ssh is in front, and that the text before the
	// cursor looks like the prompt of a shell behind it. See [Call.Adopt].
	LooksLikeShell bool `json:"looks_like_shell,omitempty"`

	// a program reads the keyboard while it works
	Listens   bool   `json:"listens,omitempty"`
	Attention string `json:"attention,omitempty"` // "likely" or "no", with Listens; see Result
	QuietMS   int64  `json:"quiet_ms,omitempty"`  // milliseconds since the last byte of output
	// layers of evidence that support it, strongest first
	Basis     []Basis `json:"basis"`
	Disputed  []Basis `json:"disputed,omitempty"` // layers that contradict it
	Offset    uint64  `json:"offset"`             // offset in the log at its begin
	SinceUnix int64   `json:"since_unix_ms"`      // its begin, in milliseconds of Unix time
	// last line of text on the screen, at most 200 characters
	LastLine  string `json:"last_line,omitempty"`
	AltScreen bool   `json:"alt_screen,omitempty"` // a program uses the alternate screen
}

// Phase is what a session does.
type Phase string

// Phases of a session.
const (
	PhasePrompt  Phase = "prompt"  // the shell waits for a command
	PhaseRunning Phase = "running" // a program runs
	PhaseWaiting Phase = "waiting" // a program waits for input
	// PhaseContinuation means that the shell waits for the rest of an incomplete command.
	PhaseContinuation Phase = "continuation"
	PhaseOpaque       Phase = "opaque" // the phase cannot be determined
	PhaseDead         Phase = "dead"   // the shell ended
)

// Want is the kind of input that a program waits for.
type Want string

// Kinds of input.
const (
	WantLine       Want = "line"       // a line of text
	WantPassword   Want = "password"   // a line that the terminal does not echo
	WantRaw        Want = "raw"        // a single key
	WantPager      Want = "pager"      // a key of a pager such as less
	WantFullscreen Want = "fullscreen" // keys for a program on the alternate screen
)

// Basis is a layer of evidence for a [State].
type Basis string

// Layers of evidence, strongest first.
const (
	BasisExit    Basis = "exit"    // the exit status of the process
	BasisProcess Basis = "process" // the processes of the terminal, as the kernel reports them
	BasisMark    Basis = "mark"    // an authenticated mark that the shell printed
	BasisScreen  Basis = "screen"  // the text on the screen
	BasisSilence Basis = "silence" // no output for a while
)

// NestedShell is a shell that was started in the shell of a session. Pid and Argv of a shell behind
// a relay such as ssh are the relay's.
type NestedShell struct {
	Pid   int      `json:"pid"`            // inside the sandbox
	Name  string   `json:"name"`           // such as bash or zsh
	Argv  []string `json:"argv"`           // program name and arguments
	User  string   `json:"user,omitempty"` // name or number; empty means unknown, behind a relay
	Depth int      `json:"depth"`          // 1 for a shell in the session's own, 2 for one in that
}

// Process is a process of a session.
type Process struct {
	Pid  int      `json:"pid"`  // inside the sandbox
	Argv []string `json:"argv"` // program name and arguments
}
