package wire

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// PartyKind is what a party is to the keyboard rules: a person may take it from an agent, never the other way.
type PartyKind string

const (
	Agent  PartyKind = "agent"
	Person PartyKind = "person"
)

// Rights are what a party may do on a session.
type Rights string

const (
	RightDrive Rights = "drive"
	RightWatch Rights = "watch"
)

// Party is who is on a session. The gateway says it on its leg to the guest, from the login; from a client it is refused.
type Party struct {
	Name   string    `json:"name"` // the principal
	Kind   PartyKind `json:"kind"`
	Rights Rights    `json:"rights"`
	ID     string    `json:"id,omitempty"`    // apart for two parties of one principal; chosen by the gateway
	Owner  bool      `json:"owner,omitempty"` // owns the sandbox: takes the keyboard from a person who does not
}

// String is how a party is shown: "agent:alice", "person:bob".
func (p Party) String() string {
	if p.Name == "" && p.Kind == "" {
		return ""
	}
	return string(p.Kind) + ":" + p.Name
}

// Where an attachment begins to read.
const (
	FromNow   = "now"
	FromStart = "start"
)

// Offset is a place in a log: a number, or one of FromNow and FromStart. Its zero value is FromNow.
type Offset struct {
	Word string // FromNow, FromStart, or empty when N counts
	N    uint64
}

// At is the offset n.
func At(n uint64) Offset { return Offset{N: n, Word: "at"} }

// MarshalJSON writes a number or a word.
func (o Offset) MarshalJSON() ([]byte, error) {
	switch o.Word {
	case "", FromNow:
		return json.Marshal(FromNow)
	case FromStart:
		return json.Marshal(FromStart)
	}
	return json.Marshal(o.N)
}

// UnmarshalJSON reads a number or a word.
func (o *Offset) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var w string
		if err := json.Unmarshal(b, &w); err != nil {
			return err
		}
		if w != FromNow && w != FromStart {
			return fmt.Errorf("offset %s is neither %q, %q nor a number", quoteShort(w), FromNow, FromStart)
		}
		*o = Offset{Word: w}
		return nil
	}
	*o = Offset{Word: "at"}
	return json.Unmarshal(b, &o.N)
}

// Attach opens a stream's one attachment: to a session by name, or again to a party that was cut off, by Resume.
type Attach struct {
	Session string `json:"session,omitempty"`
	Resume  string `json:"resume,omitempty"` // secret of an earlier Attached: the same party, the same keyboard
	Create  bool   `json:"create,omitempty"` // start the session when it does not exist
	Fresh   bool   `json:"fresh,omitempty"`  // start a new session; Session is its name, or NewSession for a generated one
	From    Offset `json:"from"`             //
	After   uint64 `json:"after,omitempty"`  // deliver kept events with a Seq above this; 0 with From now: none that were before
	Quiet   bool   `json:"quiet,omitempty"`  // no output frames: this party reads the log elsewhere
	Keep    bool   `json:"keep,omitempty"`   // from the gateway only: it records the log, and the terminal waits for it
	Party   *Party `json:"party,omitempty"`  // from the gateway only

	Start *Start `json:"start,omitempty"` // how to start the session when this call creates it
}

// Start says how a new session begins. The zero value is the sandbox's login shell at the default size.
type Start struct {
	Argv []string `json:"argv,omitempty"` // a program instead of the shell; such a session has no prompt and ends with it
	Env  []string `json:"env,omitempty"`  // on top of the sandbox's
	Dir  string   `json:"dir,omitempty"`  //
	Term string   `json:"term,omitempty"` // TERM; xterm-256color when empty
	Cols int      `json:"cols,omitempty"` // 200 when 0
	Rows int      `json:"rows,omitempty"` // 50 when 0
	Bare bool     `json:"bare,omitempty"` // no shell integration, no pager-safe environment: a plain terminal

	// Without are layers of evidence that the session's states go without: BasisProcess, BasisMark, BasisScreen. It is for
	// tests of what the other layers know where those are not to be had.
	Without []Basis `json:"without,omitempty"`
}

// DefaultCols and DefaultRows are the size of a session that nobody sized.
const (
	DefaultCols = 200
	DefaultRows = 50
)

// Attached answers Attach.
type Attached struct {
	Session  string  `json:"session"`
	Resume   string  `json:"resume"`
	Offset   uint64  `json:"offset"`             // of the first byte that follows
	Created  bool    `json:"created"`            // this call started the session
	Resumed  bool    `json:"resumed"`            // the party is one that was attached before
	Accepted uint64  `json:"accepted,omitempty"` // input bytes of this party taken so far
	State    State   `json:"state"`
	Keyboard string  `json:"keyboard"`
	Cols     int     `json:"cols"`
	Rows     int     `json:"rows"`
	Seq      uint64  `json:"seq"`               // of the newest event
	Private  string  `json:"private,omitempty"` // who has a private stretch
	Shell    string  `json:"shell,omitempty"`   // program that a run's command is for: bash, dash; empty where there is no shell
	Parties  []Party `json:"parties,omitempty"`
	Error    *Error  `json:"error,omitempty"` // the attach failed; the stream ends after this frame

	// Incarnation is a random name of the shell that the session has. A shell that is started in its place has another one, also
	// after the guest was started again. It is empty from guests that do not say, and for a session that has no shell yet.
	Incarnation string `json:"incarnation,omitempty"`
}

// Verb is what a Request asks for.
type Verb string

const (
	VerbRun       Verb = "run"       // give the shell a command and follow it to its end
	VerbType      Verb = "type"      // text to the program, with Enter unless Raw; then as wait
	VerbKeys      Verb = "keys"      // named keys to the program; then as wait
	VerbInterrupt Verb = "interrupt" // ^C, then TERM, then KILL to what runs
	VerbTake      Verb = "take"      // the keyboard
	VerbGive      Verb = "give"      // the keyboard back, to whoever has asked for it
	VerbKeep      Verb = "keep"      // the keyboard, although another party has asked for it
	VerbPrivate   Verb = "private"   // On or off: what the terminal shows is for the driver alone
	VerbResize    Verb = "resize"    // the terminal, by its driver
	VerbWait      Verb = "wait"      // for a phase
	VerbList      Verb = "list"      // sessions; needs no attachment
	VerbClose     Verb = "close"     // end a session and its processes
	VerbCancel    Verb = "cancel"    // end request Cancel of this stream; the program is not touched
	VerbScreen    Verb = "screen"    // the text of the screen
)

// Drives reports whether the request is for parties with the right to drive. Watchers get CodeDenied for it, whatever state the
// session is in. Giving the keyboard back, and a size of their own, change nothing for a watcher and are no error.
func (r Request) Drives() bool {
	switch r.Verb {
	case VerbRun, VerbType, VerbKeys, VerbInterrupt, VerbTake, VerbKeep, VerbClose:
		return true
	case VerbPrivate:
		return r.On
	}
	return false
}

// Request asks for one thing. Fields that a verb does not name are ignored.
type Request struct {
	Verb      Verb       `json:"verb"`
	Op        string     `json:"op,omitempty"`         // run, type, keys: 128 bits of hex in lower case; a repeated one gets the first one's result
	Text      string     `json:"text,omitempty"`       // run: the command; type: the text
	Raw       bool       `json:"raw,omitempty"`        // type: without Enter
	Answer    bool       `json:"answer,omitempty"`     // type, keys: only to a program that asks, else refused with not_waiting
	Keys      []string   `json:"keys,omitempty"`       // keys: ^C, Up, Enter, F1, "a"…
	TimeoutMS int64      `json:"timeout_ms,omitempty"` // run, type, keys, wait: 0 is 120 s, negative is none
	Kill      bool       `json:"kill,omitempty"`       // run: interrupt what still runs at the deadline
	Hold      bool       `json:"hold,omitempty"`       // run, type, keys: wait for a keyboard that a person holds
	MaxOutput int        `json:"max_output,omitempty"` // bytes of Result.Output; 0 is 32 KiB, negative is all that fits a frame
	Screen    ShowScreen `json:"screen,omitempty"`     // run, type, keys, wait, interrupt: when Result.Screen is set
	For       []Phase    `json:"for,omitempty"`        // wait: which phases; none means any but running
	Keyboard  bool       `json:"keyboard,omitempty"`   // wait: until no other person holds the keyboard; For is not used
	Ask       bool       `json:"ask,omitempty"`        // take: where it cannot be taken, ask its holder for it
	On        bool       `json:"on,omitempty"`         // private
	Cols      int        `json:"cols,omitempty"`       // resize
	Rows      int        `json:"rows,omitempty"`       // resize
	Session   string     `json:"session,omitempty"`    // close, from a stream without attachment: which
	Cancel    uint32     `json:"cancel,omitempty"`     // cancel: the request's id
	Party     *Party     `json:"party,omitempty"`      // reserved to the gateway

	// Incarnation, with Op, is [Attached.Incarnation] of the shell that the call was first given to. Where the session does not
	// know the call and has another shell, nothing is done and the call is lost. Empty means any shell.
	Incarnation string `json:"incarnation,omitempty"`
}

// ShowScreen says when a Result has the screen. Its zero value is ScreenAuto.
type ShowScreen string

const (
	// ScreenAuto shows it while the program in front uses the alternate screen, is a pager, or listens and has come to rest.
	ScreenAuto   ShowScreen = "auto"
	ScreenAlways ShowScreen = "always"
	ScreenNever  ShowScreen = "never"
)

// ParseShowScreen returns what a caller wrote; empty is ScreenAuto. The error says what there is.
func ParseShowScreen(text string) (ShowScreen, error) {
	switch show := ShowScreen(text); show {
	case "":
		return ScreenAuto, nil
	case ScreenAuto, ScreenAlways, ScreenNever:
		return show, nil
	}
	return "", Errorf(CodeUsage, "screen %.40q: use never, auto or always", text)
}

// NewOp returns a fresh Request.Op: 128 random bits in hex.
func NewOp() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// Reply answers a Request, exactly once.
type Reply struct {
	Result   *Result       `json:"result,omitempty"` // run, type, keys, wait, interrupt
	Sessions []SessionInfo `json:"sessions,omitempty"`
	Screen   *Screen       `json:"screen,omitempty"`
	Keyboard string        `json:"keyboard,omitempty"` // take, give: who holds it now
	Asked    bool          `json:"asked,omitempty"`    // take: it was not taken, its holder was asked
	Error    *Error        `json:"error,omitempty"`

	// Incarnation is that of the session's shell when a run, type or keys was answered, as [Attached.Incarnation]: a run may have
	// started a new one.
	Incarnation string `json:"incarnation,omitempty"`
}

// SessionInfo is a line of list.
type SessionInfo struct {
	Name     string   `json:"name"`
	State    State    `json:"state"`
	Keyboard string   `json:"keyboard"`
	Cols     int      `json:"cols"`
	Rows     int      `json:"rows"`
	Parties  []Party  `json:"parties"`
	Argv     []string `json:"argv,omitempty"` // of a session that is a program
	Created  int64    `json:"created_unix_ms"`
	Offset   uint64   `json:"offset"`            // length of the log
	Private  string   `json:"private,omitempty"` // who has a private stretch
}

// Screen is what the terminal shows.
type Screen struct {
	Text      string `json:"text"` // lines joined by \n, trailing blanks and lines left out
	Cols      int    `json:"cols"`
	Rows      int    `json:"rows"`
	CursorX   int    `json:"cursor_x"`
	CursorY   int    `json:"cursor_y"`
	Visible   bool   `json:"cursor_visible"`
	AltScreen bool   `json:"alt_screen"`
	Title     string `json:"title,omitempty"`
	Offset    uint64 `json:"offset"`
	Stopped   bool   `json:"stopped,omitempty"` // the sandbox is: this is what the terminal showed last
}

// EventKind is what an Event tells.
type EventKind string

const (
	EventState    EventKind = "state"    // State
	EventKeyboard EventKind = "keyboard" // Keyboard, By
	EventResize   EventKind = "resize"   // Cols, Rows
	EventLagged   EventKind = "lagged"   // Missed bytes were skipped; output goes on at Offset; Text says why: WhyPrivate
	EventEnded    EventKind = "ended"    // the session ended; State says how
	EventCommand  EventKind = "command"  // a run began: Text, By, Op
	EventBegun    EventKind = "begun"    // that run's output begins here, behind what shows the command: Op; without Op of a command that By typed
	EventOver     EventKind = "over"     // and ends here, before the prompt: Op; without, of what was typed: ExitCode
	EventResult   EventKind = "result"   // that run ended: ExitCode, Op, Why
	EventInput    EventKind = "input"    // By sent Bytes bytes of input; or some that the terminal did not show: Text is Hidden
	EventJoin     EventKind = "join"     // By attached
	EventLeave    EventKind = "leave"    // By detached
	EventAsk      EventKind = "ask"      // By asks Keyboard, the holder, for it; without By nobody does any longer
	EventPrivate  EventKind = "private"  // By began a private stretch; without By it is over, and Missed bytes before Offset are its
)

// Hidden is the Text of an input event in the place of Bytes: a password is not told, and neither is how long it is.
const Hidden = "<hidden>"

// WhyPrivate is the Text of a lagged event for a private stretch.
const WhyPrivate = "private"

// Event is a fact about a session at an offset of its log: it comes after byte Offset-1 and before byte Offset.
type Event struct {
	Seq      uint64    `json:"seq"` // counts a session's events from 1; 0 for events of this stream alone
	Kind     EventKind `json:"kind"`
	Offset   uint64    `json:"offset"`
	TimeUnix int64     `json:"time_unix_ms"`
	State    *State    `json:"state,omitempty"`
	By       string    `json:"by,omitempty"` // Party.String
	Keyboard string    `json:"keyboard,omitempty"`
	ID       string    `json:"id,omitempty"` // keyboard: Party.ID of the holder; command: of who had typed at the prompt what the shell threw away for it
	Cols     int       `json:"cols,omitempty"`
	Rows     int       `json:"rows,omitempty"`
	Missed   uint64    `json:"missed,omitempty"`
	Text     string    `json:"text,omitempty"`
	Op       string    `json:"op,omitempty"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Why      Ended     `json:"why,omitempty"`
	Bytes    int       `json:"bytes,omitempty"`
}

// GuestConfig is the one JSON line that the guest reads from its standard input before anything else; the writer then
// closes. It is the only place where a sandbox meets its keys: not its environment, arguments, labels or files.
type GuestConfig struct {
	Version    int      `json:"version"`              // Version of the writer
	HostKey    string   `json:"host_key"`             // the guest's private host key, OpenSSH PEM
	ClientKey  string   `json:"client_key"`           // the only key that may log in, authorized_keys form
	Name       string   `json:"name"`                 // of the sandbox, for prompts; empty: it is told later, by Control
	Socket     string   `json:"socket"`               // path of the unix socket to dial
	TunSocket  string   `json:"tun_socket,omitempty"` // path of the one on which the network device is passed; empty: none
	User       string   `json:"user,omitempty"`       // as Spec.User, resolved against the image's /etc/passwd; empty is root
	Env        []string `json:"env,omitempty"`        // of sessions and commands: the image's, the trust variables, the Spec's
	Workdir    string   `json:"workdir,omitempty"`    // where sessions begin; empty is the user's home
	Entrypoint []string `json:"entrypoint,omitempty"` // runs as session "entrypoint"
	StopSignal string   `json:"stop_signal,omitempty"`
	Sessions   int      `json:"sessions,omitempty"` // most sessions at once; 0 is 32

	Mounts  []GuestMount `json:"mounts,omitempty"`  // directories of the machine; /work leads to the first one
	Account string       `json:"account,omitempty"` // name of the account that is made for User, a number, if the image has none
	Sudo    bool         `json:"sudo,omitempty"`    // the image's sudo asks User for no password
}

// GuestMount is a directory of the machine that has to be there before anything runs: the very one that the daemon looked at.
type GuestMount struct {
	Path   string `json:"path"`             // in the sandbox
	Source string `json:"source,omitempty"` // of the machine, where it is another; the guest has no use for it
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
}

// Control is the payload of a ControlRequest, from the daemon to the guest.
type Control struct {
	Do      string `json:"do"`                 // hello, health, rescue, stop, name, user
	GraceMS int64  `json:"grace_ms,omitempty"` // stop
	Reason  string `json:"reason,omitempty"`   // rescue: why sessions are dead by it; empty is rescued
	Name    string `json:"name,omitempty"`     // name: what a sandbox is called that was booted without one, from now on; once
	User    string `json:"user,omitempty"`     // user: name or uid, either with :group, that programs of this connection run as
}

// ControlReply answers it.
type ControlReply struct {
	Version  int    `json:"version"`
	Software string `json:"software,omitempty"`
	Health   string `json:"health,omitempty"` // ok, or "broken: why", "limit_pids: why"
	Killed   int    `json:"killed,omitempty"` // rescue: processes ended
	Error    *Error `json:"error,omitempty"`
}
