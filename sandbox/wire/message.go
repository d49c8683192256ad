package wire

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// PartyKind is the kind of a party in the keyboard rules: a person can take the keyboard from an
// agent, but not vice versa.
type PartyKind string

const (
	Agent  PartyKind = "agent"
	Person PartyKind = "person"
)

// Rights are the rights of a party on a session.
type Rights string

const (
	RightDrive Rights = "drive"
	RightWatch Rights = "watch"
)

// Party is an attachment to a session, or the client behind it. The gateway sets it, from the
// login, in messages to the guest, and rejects it from clients.
type Party struct {
	Name   string    `json:"name"` // the principal
	Kind   PartyKind `json:"kind"`
	Rights Rights    `json:"rights"`
	// distinguishes parties of one principal; set by the gateway
	ID string `json:"id,omitempty"`
	// owns the sandbox; can take the keyboard from a person who does not
	Owner bool `json:"owner,omitempty"`
}

// String returns the party as text: "agent:alice", "person:bob".
func (p Party) String() string {
	if p.Name == "" && p.Kind == "" {
		return ""
	}
	return string(p.Kind) + ":" + p.Name
}

// Positions at which an attachment begins to read.
const (
	FromNow   = "now"
	FromStart = "start"
)

// Offset is a position in a log: a number, FromNow or FromStart. The zero value is FromNow.
type Offset struct {
	Word string // FromNow or FromStart; "at" means N; empty means FromNow
	N    uint64
}

// At returns the offset n.
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
			return fmt.Errorf(
				"offset %s is neither %q, %q nor a number",
				quoteShort(w),
				FromNow,
				FromStart,
			)
		}
		*o = Offset{Word: w}
		return nil
	}
	*o = Offset{Word: "at"}
	return json.Unmarshal(b, &o.N)
}

// Attach opens the attachment of a stream: to a session by name, or with Resume to an earlier,
// disconnected party.
type Attach struct {
	Session string `json:"session,omitempty"`
	// secret of an earlier Attached; resumes that party and its keyboard
	Resume string `json:"resume,omitempty"`
	Create bool   `json:"create,omitempty"` // start the session if it does not exist
	// start a new session; Session is its name, or NewSession for a generated name
	Fresh bool   `json:"fresh,omitempty"`
	From  Offset `json:"from"` // position in the log to begin at
	// deliver stored events with a greater Seq; 0 with From now: no earlier events
	After uint64 `json:"after,omitempty"`
	Quiet bool   `json:"quiet,omitempty"` // no output frames: the party reads the log elsewhere
	// only from the gateway: it records the log, and the terminal waits for it
	Keep  bool   `json:"keep,omitempty"`
	Party *Party `json:"party,omitempty"` // only from the gateway

	Start *Start `json:"start,omitempty"` // how to start the session, if this call starts it
}

// Start says how to start a session. The zero value is the sandbox's login shell at the default
// size.
type Start struct {
	// a program instead of the shell; the session has no prompt and ends with it
	Argv []string `json:"argv,omitempty"`
	Env  []string `json:"env,omitempty"`  // added to the sandbox's environment
	Dir  string   `json:"dir,omitempty"`  // working directory; empty means the sandbox's
	Term string   `json:"term,omitempty"` // TERM; empty means xterm-256color
	Cols int      `json:"cols,omitempty"` // 0 means 200
	Rows int      `json:"rows,omitempty"` // 0 means 50
	// a plain terminal: no shell integration, no environment against pagers
	Bare bool `json:"bare,omitempty"`

	// Without disables layers of evidence: BasisProcess, BasisMark, BasisScreen. It is for tests of
	// the other layers.
	Without []Basis `json:"without,omitempty"`
}

// DefaultCols and DefaultRows are the default size of a session: most programs fit, and so does a
// person's window.
const (
	DefaultCols = 120
	DefaultRows = 40
)

// Attached answers Attach.
type Attached struct {
	Session string `json:"session"`
	Resume  string `json:"resume"`
	Offset  uint64 `json:"offset"`  // log offset of the next output byte
	Created bool   `json:"created"` // this call started the session
	Resumed bool   `json:"resumed"` // the party is a resumed one
	// input bytes of this party that were accepted so far
	Accepted uint64 `json:"accepted,omitempty"`
	State    State  `json:"state"`
	Keyboard string `json:"keyboard"`
	Cols     int    `json:"cols"`
	Rows     int    `json:"rows"`
	Seq      uint64 `json:"seq"`               // number of the newest event
	Private  string `json:"private,omitempty"` // party in private mode; empty means none
	// shell that runs the commands, such as bash or dash; empty if there is none
	Shell   string  `json:"shell,omitempty"`
	Parties []Party `json:"parties,omitempty"`
	Error   *Error  `json:"error,omitempty"` // the attach failed; the stream ends after this frame

	// Incarnation is the random ID of the session's shell. A new shell has a new ID, also after a
	// restart of the guest. It is empty from older guests, and for a session without a shell.
	Incarnation string `json:"incarnation,omitempty"`
}

// Verb is what a Request asks for.
type Verb string

const (
	VerbRun Verb = "run" // run a command in the shell and wait for its end
	// VerbType types text to the program, with Enter unless Raw; then as wait.
	VerbType      Verb = "type"
	VerbKeys      Verb = "keys"      // send named keys to the program; then as wait
	VerbInterrupt Verb = "interrupt" // ^C, then TERM, then KILL to the program
	VerbTake      Verb = "take"      // take the keyboard
	VerbGive      Verb = "give"      // give the keyboard back, or to the party that asked for it
	VerbKeep      Verb = "keep"      // keep the keyboard although another party asks for it
	// VerbPrivate begins (On) or ends private mode: only the keyboard's holder gets output.
	VerbPrivate Verb = "private"
	VerbResize  Verb = "resize" // resize the terminal
	VerbWait    Verb = "wait"   // wait for a phase
	VerbList    Verb = "list"   // list sessions; needs no attachment
	VerbClose   Verb = "close"  // end a session and its processes
	// VerbCancel cancels request Cancel of this stream; the program is not affected.
	VerbCancel Verb = "cancel"
	VerbScreen Verb = "screen" // return the screen
	// VerbTrace returns what the session's state was judged by, see Reply.Trace. Guests of earlier
	// versions do not know it.
	VerbTrace Verb = "trace"
)

// Drives reports whether the request needs the right to drive. Watchers get CodeDenied for it in
// any state of the session. For a watcher, give and resize have no effect and are not errors.
func (r Request) Drives() bool {
	switch r.Verb {
	case VerbRun, VerbType, VerbKeys, VerbInterrupt, VerbTake, VerbKeep, VerbClose:
		return true
	case VerbTrace: // it has arguments of programs that ended before a watcher came
		return true
	case VerbPrivate:
		return r.On
	}
	return false
}

// Request is one request. Fields that do not apply to the verb are ignored.
type Request struct {
	Verb Verb `json:"verb"`
	// run, type, keys: 128 bits in lower-case hex; a repeated Op returns the first result
	Op   string `json:"op,omitempty"`
	Text string `json:"text,omitempty"` // run: the command; type: the text
	Raw  bool   `json:"raw,omitempty"`  // type: without Enter
	// type, keys: only to a program that asks, else rejected with not_waiting
	Answer bool     `json:"answer,omitempty"`
	Keys   []string `json:"keys,omitempty"` // keys: ^C, Up, Enter, F1, "a"…
	// run, type, keys, wait: 0 means 120 s, negative means none
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// run: if a relay such as ssh is in front, run the command in the shell behind it
	Adopt bool `json:"adopt,omitempty"`
	// run: interrupt the command at the timeout
	Kill bool `json:"kill,omitempty"`
	// run, type, keys: wait for a keyboard that a person holds
	Hold bool `json:"hold,omitempty"`
	// limit of Result.Output in bytes; 0 means 32 KiB, negative what fits a frame
	MaxOutput int `json:"max_output,omitempty"`
	// run, type, keys, wait, interrupt: when Result.Screen is set
	Screen ShowScreen `json:"screen,omitempty"`
	// wait: phases to wait for; none means any but running
	For []Phase `json:"for,omitempty"`
	// wait: until no other person holds the keyboard; For is not used
	Keyboard bool `json:"keyboard,omitempty"`
	// take: if it cannot be taken, ask its holder for it
	Ask  bool `json:"ask,omitempty"`
	On   bool `json:"on,omitempty"`   // private
	Cols int  `json:"cols,omitempty"` // resize
	Rows int  `json:"rows,omitempty"` // resize
	// close, on a stream without attachment: session to close
	Session string `json:"session,omitempty"`
	Cancel  uint32 `json:"cancel,omitempty"` // cancel: the request's id
	Party   *Party `json:"party,omitempty"`  // reserved for the gateway

	// Incarnation, with Op, is [Attached.Incarnation] at the first attempt of the call. If the
	// session does not know the call and has another shell, the call does not run and is lost.
	// Empty means any shell.
	Incarnation string `json:"incarnation,omitempty"`
}

// ShowScreen says when Result.Screen is set. The zero value means ScreenAuto.
type ShowScreen string

const (
	// ScreenAuto sets it if the foreground program uses the alternate screen, is a pager, or reads
	// the keyboard while it works and is idle.
	ScreenAuto   ShowScreen = "auto"
	ScreenAlways ShowScreen = "always"
	ScreenNever  ShowScreen = "never"
)

// ParseShowScreen parses a ShowScreen; empty means ScreenAuto. The error lists the values.
func ParseShowScreen(text string) (ShowScreen, error) {
	switch show := ShowScreen(text); show {
	case "":
		return ScreenAuto, nil
	case ScreenAuto, ScreenAlways, ScreenNever:
		return show, nil
	}
	return "", Errorf(CodeUsage, "screen %.40q: use never, auto or always", text)
}

// NewOp returns a new Request.Op: 128 random bits in hex.
func NewOp() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// Reply is the reply to a Request. Each Request has exactly one.
type Reply struct {
	Result   *Result       `json:"result,omitempty"` // run, type, keys, wait, interrupt
	Sessions []SessionInfo `json:"sessions,omitempty"`
	Screen   *Screen       `json:"screen,omitempty"`
	// trace: a Trace of package track
	Trace    json.RawMessage `json:"trace,omitempty"`
	Keyboard string          `json:"keyboard,omitempty"` // take, give: who holds it now
	// take: not taken; the holder was asked for it
	Asked bool   `json:"asked,omitempty"`
	Error *Error `json:"error,omitempty"`

	// Incarnation is the [Attached.Incarnation] after run, type or keys: run may have started a new
	// shell.
	Incarnation string `json:"incarnation,omitempty"`
}

// SessionInfo is one session of a list.
type SessionInfo struct {
	Name     string   `json:"name"`
	State    State    `json:"state"`
	Keyboard string   `json:"keyboard"`
	Cols     int      `json:"cols"`
	Rows     int      `json:"rows"`
	Parties  []Party  `json:"parties"`
	Argv     []string `json:"argv,omitempty"` // program of a session without a shell
	Created  int64    `json:"created_unix_ms"`
	Offset   uint64   `json:"offset"`            // length of the log
	Private  string   `json:"private,omitempty"` // party in private mode; empty means none
}

// Screen is what the terminal shows.
type Screen struct {
	Text      string `json:"text"` // lines joined by \n, without trailing blanks and empty lines
	Cols      int    `json:"cols"`
	Rows      int    `json:"rows"`
	CursorX   int    `json:"cursor_x"`
	CursorY   int    `json:"cursor_y"`
	Visible   bool   `json:"cursor_visible"`
	AltScreen bool   `json:"alt_screen"`
	Title     string `json:"title,omitempty"`
	Offset    uint64 `json:"offset"`
	// a program takes pastes as one: it has switched bracketed paste mode on
	BracketedPaste bool `json:"bracketed_paste,omitempty"`
	// the sandbox is stopped; this is its last screen
	Stopped bool `json:"stopped,omitempty"`
}

// EventKind is the kind of an Event.
type EventKind string

const (
	EventState    EventKind = "state"    // State
	EventKeyboard EventKind = "keyboard" // Keyboard, By
	EventResize   EventKind = "resize"   // Cols, Rows
	// EventLagged means that Missed bytes were skipped; output continues at Offset; Text says why,
	// such as WhyPrivate.
	EventLagged  EventKind = "lagged"
	EventEnded   EventKind = "ended"   // the session ended; State says why
	EventCommand EventKind = "command" // a run began: Text, By, Op
	// EventBegun means that the output of run Op begins here; without Op, that of a command that By
	// typed.
	EventBegun EventKind = "begun"
	// EventOver means that the output of run Op ends here; without Op, that of a typed command:
	// ExitCode.
	EventOver   EventKind = "over"
	EventResult EventKind = "result" // run Op ended: ExitCode, Why
	// EventInput means that By sent Bytes bytes of input; if the terminal does not echo, Text is
	// Hidden instead.
	EventInput EventKind = "input"
	EventJoin  EventKind = "join"  // By attached
	EventLeave EventKind = "leave" // By detached
	// EventAsk means that By asks Keyboard, the holder, for the keyboard; without By the request
	// ended.
	EventAsk EventKind = "ask"
	// EventPrivate means that By began private mode; without By it ended, and hides Missed bytes
	// before Offset.
	EventPrivate EventKind = "private"
)

// Hidden is the Text of an input event without Bytes: the length of a password is not recorded.
const Hidden = "<hidden>"

// WhyPrivate is the Text of a lagged event for private mode.
const WhyPrivate = "private"

// Event is an event of a session at an offset of its log. It is sent after byte Offset-1 and before
// byte Offset.
type Event struct {
	// counts a session's events from 1; 0 for events of only this stream
	Seq      uint64    `json:"seq"`
	Kind     EventKind `json:"kind"`
	Offset   uint64    `json:"offset"`
	TimeUnix int64     `json:"time_unix_ms"`
	State    *State    `json:"state,omitempty"`
	By       string    `json:"by,omitempty"` // Party.String
	Keyboard string    `json:"keyboard,omitempty"`
	// keyboard: Party.ID of the holder; command: Party.ID of the party whose unsent text at the
	// prompt the shell discarded
	ID       string `json:"id,omitempty"`
	Cols     int    `json:"cols,omitempty"`
	Rows     int    `json:"rows,omitempty"`
	Missed   uint64 `json:"missed,omitempty"`
	Text     string `json:"text,omitempty"`
	Op       string `json:"op,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Why      Ended  `json:"why,omitempty"`
	Bytes    int    `json:"bytes,omitempty"`
}

// GuestConfig is the JSON line that the guest first reads from its standard input, which the writer
// then closes. Keys are passed to a sandbox only here, never by environment, arguments, labels or
// files.
type GuestConfig struct {
	Version int    `json:"version"`  // Version of the writer
	HostKey string `json:"host_key"` // the guest's private host key, OpenSSH PEM
	// the only key that can log in, in authorized_keys format
	ClientKey string `json:"client_key"`
	// name of the sandbox, for prompts; empty: Control sets it later
	Name   string `json:"name"`
	Socket string `json:"socket"` // path of the unix socket to dial
	// Listen are the addresses to listen on instead of dialing Socket: unix:@NAME for an abstract
	// unix socket, tcp:HOST:PORT.
	Listen []string `json:"listen,omitempty"`
	// path of the unix socket to pass the network device on; empty: no device
	TunSocket string `json:"tun_socket,omitempty"`
	// as Spec.User, resolved in the image's /etc/passwd; empty means root
	User string `json:"user,omitempty"`
	// environment of sessions and commands: of the image, for certificates, of the Spec
	Env []string `json:"env,omitempty"`
	// working directory of sessions; empty means the user's home
	Workdir    string   `json:"workdir,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"` // runs as session "entrypoint"
	StopSignal string   `json:"stop_signal,omitempty"`
	Sessions   int      `json:"sessions,omitempty"` // maximal number of sessions; 0 means 32

	// directories of the host machine; /work links to the first
	Mounts []GuestMount `json:"mounts,omitempty"`
	// name of the account to create for User, a number, if the image has none
	Account string `json:"account,omitempty"`
	Sudo    bool   `json:"sudo,omitempty"` // the image's sudo does not ask User for a password
	// directory of a volume: as long as it is empty and root's, it is given to User
	Volume string `json:"volume,omitempty"`
	// certificate authorities, in PEM, for AuthoritiesFile; empty without
	Authorities string `json:"authorities,omitempty"`
}

// AuthoritiesFile is the file in a sandbox that the guest writes GuestConfig.Authorities to before
// anything runs. All may read it. Control replaces it.
const AuthoritiesFile = "/run/.sandboxd/ca.crt"

// GuestMount is a mounted directory. Before anything runs, the guest checks that it is the one that
// the daemon checked.
type GuestMount struct {
	Path string `json:"path"` // path in the sandbox
	// Path on the machine, if different; unused by the guest.
	Source string `json:"source,omitempty"`
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
}

// Control is the payload of a ControlRequest, from the daemon to the guest.
type Control struct {
	Do      string `json:"do"`                 // hello, health, rescue, stop, name, user, trust
	GraceMS int64  `json:"grace_ms,omitempty"` // stop
	// rescue: reason of sessions that it ends; empty means rescued
	Reason string `json:"reason,omitempty"`
	// name: sets the name of a sandbox that was booted without one, once
	Name string `json:"name,omitempty"`
	// user: name or UID, with an optional :group, to run programs of this connection as
	User string `json:"user,omitempty"`
	// trust: the certificate authorities that follow those of GuestConfig in AuthoritiesFile, in
	// PEM; empty for none
	Authorities string `json:"authorities,omitempty"`
}

// ControlReply is the reply to a Control.
type ControlReply struct {
	Version  int    `json:"version"`
	Software string `json:"software,omitempty"`
	Health   string `json:"health,omitempty"` // ok, or "broken: why", "limit_pids: why"
	Killed   int    `json:"killed,omitempty"` // rescue: number of killed processes
	Error    *Error `json:"error,omitempty"`
}
