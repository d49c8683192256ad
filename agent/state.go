package agent

// State says what a session is doing, how that is known, and since when.
type State struct {
	Phase      Phase    `json:"phase"`
	Want       Want     `json:"want,omitempty"`       // kind of input, while a program waits for it
	ExitCode   *int     `json:"exit_code"`            // of the last command at the prompt, of the shell when it is dead; nil means none
	Signal     string   `json:"signal,omitempty"`     // that ended the shell, without SIG
	Reason     string   `json:"reason,omitempty"`     // why the shell is dead, or why a layer of evidence could not tell
	Cwd        string   `json:"cwd,omitempty"`        // working directory of the shell
	Foreground *Process `json:"foreground,omitempty"` // the program in front; nil where it is not known
	Prompt     string   `json:"prompt,omitempty"`     // text in front of the cursor, while a program waits
	Listens    bool     `json:"listens,omitempty"`    // a program reads the keyboard beside its work
	Attention  string   `json:"attention,omitempty"`  // "likely" or "no", of one that listens
	QuietMS    int64    `json:"quiet_ms,omitempty"`   // milliseconds since the last byte of output
	Basis      []Basis  `json:"basis"`                // layers of evidence that agree, strongest first
	Disputed   []Basis  `json:"disputed,omitempty"`   // layers that disagree
	Offset     uint64   `json:"offset"`               // where in the log it became true
	SinceUnix  int64    `json:"since_unix_ms"`        // when, in milliseconds of Unix time
	LastLine   string   `json:"last_line,omitempty"`  // last line of text on the screen, at most 200 characters
	AltScreen  bool     `json:"alt_screen,omitempty"` // a program draws the whole screen
}

// Phase is what a session is doing.
type Phase string

// What a session may be doing.
const (
	PhasePrompt       Phase = "prompt"       // the shell waits for a command
	PhaseRunning      Phase = "running"      // a program works
	PhaseWaiting      Phase = "waiting"      // a program waits for input
	PhaseContinuation Phase = "continuation" // the shell waits for the rest of an unfinished command
	PhaseOpaque       Phase = "opaque"       // it cannot be known
	PhaseDead         Phase = "dead"         // the shell ended
)

// Want is the kind of input that a program waits for.
type Want string

// Kinds of input.
const (
	WantLine       Want = "line"       // a line of text
	WantPassword   Want = "password"   // a line that the terminal does not show
	WantRaw        Want = "raw"        // a single key
	WantPager      Want = "pager"      // a key of a pager such as less
	WantFullscreen Want = "fullscreen" // keys, of a program that draws the whole screen
)

// Basis is a layer of evidence for a state.
type Basis string

// Layers of evidence, strongest first.
const (
	BasisExit    Basis = "exit"    // the exit status of the process
	BasisProcess Basis = "process" // what the processes of the terminal do, as the kernel knows it
	BasisMark    Basis = "mark"    // an authenticated mark that the shell printed
	BasisScreen  Basis = "screen"  // what stands on the screen
	BasisSilence Basis = "silence" // no output for a while
)

// Process is a program that a session runs.
type Process struct {
	Pid  int      `json:"pid"`  // inside the sandbox
	Argv []string `json:"argv"` // its arguments, the name first
}
