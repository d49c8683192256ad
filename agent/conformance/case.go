// Package conformance runs cases against a sandbox, over SSH and nothing else, and says which of them hold: what a terminal
// does, and what a caller is told of it. The cases themselves are data, in package corpus, so that another program can run
// the same ones against another product.
//
// It knows nothing of how a session comes to its verdicts; it reads them, with the layers that they rest on.
package conformance

import (
	"context"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Tier says which layers of evidence a session has.
type Tier string

const (
	Full      Tier = "full"
	NoProcess Tier = "no-process" // no process facts: another machine, gVisor, access denied
	NoMarks   Tier = "no-marks"   // a shell without integration
	Neither   Tier = "neither"
)

// Tiers are all of them, the strongest first.
var Tiers = []Tier{Full, NoProcess, NoMarks, Neither}

// Without are the layers that a session of the tier goes without.
func (t Tier) Without() []agent.Basis {
	switch t {
	case NoProcess:
		return []agent.Basis{agent.BasisProcess}
	case NoMarks:
		return []agent.Basis{agent.BasisMark}
	case Neither:
		return []agent.Basis{agent.BasisProcess, agent.BasisMark}
	}
	return nil
}

// Marks says whether shells print marks on the tier.
func (t Tier) Marks() bool { return t == Full || t == NoProcess }

// Case is one thing that must be true. Each runs in a fresh session of its own.
type Case struct {
	Group string `json:"group"`
	Name  string `json:"case"`  // unique in its group
	About string `json:"about"` // what must be true, for the reader

	Needs      []string `json:"needs,omitempty"`      // programs that must be in the sandbox
	Privileged bool     `json:"privileged,omitempty"` // setuid programs have to work: a sandbox made with --sudo
	Files      []File   `json:"files,omitempty"`      // written first
	Setup      string   `json:"setup,omitempty"`      // shell text, run without a terminal before the session begins; must end with 0
	Start      Start    `json:"start,omitzero"`       // how the session begins
	Steps      []Step   `json:"steps,omitempty"`
	Cleanup    string   `json:"cleanup,omitempty"` // shell text, run without a terminal when the session is closed

	// Cannot names the tiers on which the case cannot hold, with the reason. On all others it must.
	Cannot map[Tier]string `json:"cannot,omitempty"`

	// Func names Go code that is the case, in place of Steps, where data does not suffice: what it does to connections
	// and files. Other programs leave it out.
	Func string `json:"func,omitempty"`
	Do   Func   `json:"-"`
}

// ID is the name by which a case is known outside its group.
func (c Case) ID() string { return c.Group + "/" + c.Name }

// Func is a case in Go. It returns nil when it holds. ctx bounds it.
type Func func(ctx context.Context, w World) error

// World is what a Func works with. It closes what it opens.
type World struct {
	Client *agent.Client
	Tier   Tier

	// Dial makes another client of the same sandbox, whose connection the Func may do with what it likes; nil where the
	// runner has none.
	Dial func(ctx context.Context) (*agent.Client, error)
}

// Attach opens a fresh session with the layers of the tier.
func (w World) Attach(ctx context.Context, c *agent.Client) (*agent.Shell, error) {
	return c.Attach(ctx, agent.ShellOptions{Session: wire.NewSession, Fresh: true, Start: agent.Start{Without: w.Tier.Without()}})
}

// File is a file of a case. A relative path is one below the home directory.
type File struct {
	Path string `json:"path"`
	Text string `json:"text"`
	Mode string `json:"mode,omitempty"` // of chmod(1), such as 755
}

// Start says how the session of a case begins. The zero value is the sandbox's login shell.
type Start struct {
	Argv []string `json:"argv,omitempty"`
	Env  []string `json:"env,omitempty"`
	Cols int      `json:"cols,omitempty"` // 200 when 0
	Rows int      `json:"rows,omitempty"` // 50 when 0
}

// Verb is what a step does.
type Verb string

const (
	Run       Verb = "run"       // give the shell Text as a complete command; typed where there are no marks
	Type      Verb = "type"      // type Text and Enter
	Raw       Verb = "raw"       // type Text without Enter
	Keys      Verb = "keys"      // press Keys
	Wait      Verb = "wait"      // for one of For, or for anything but running
	Interrupt Verb = "interrupt" // stop what runs
	Exec      Verb = "exec"      // run Text without a terminal, with Stdin
	Screen    Verb = "screen"    // look at the screen: Output is what it shows
	End       Verb = "end"       // close the session
)

// Step is one call and what must be true of its answer.
type Step struct {
	Do    Verb          `json:"do"`
	Text  string        `json:"text,omitempty"`
	Keys  []string      `json:"keys,omitempty"`
	For   []agent.Phase `json:"for,omitempty"`
	Stdin string        `json:"stdin,omitempty"`
	Kill  bool          `json:"kill,omitempty"`  // run: interrupt what still runs when the time is up
	Shell string        `json:"shell,omitempty"` // another session of the case, opened when it is first named

	TimeoutMS int64 `json:"timeout_ms,omitempty"` // 20,000 when 0

	Times int `json:"times,omitempty"` // the step is made so often, each time with the same answer; once when 0

	// Meanwhile are steps that are made while this one is under way, AfterMS after it began.
	Meanwhile []Step `json:"meanwhile,omitempty"`
	AfterMS   int64  `json:"after_ms,omitempty"`

	Want Want `json:"want,omitzero"`

	// Without, by tier, is wanted in place of Want where a weaker layer answers.
	Without map[Tier]Want `json:"without,omitempty"`
}

// defaultTimeout is that of a step.
const defaultTimeout = 20 * time.Second

func (s Step) timeout() time.Duration {
	if s.TimeoutMS == 0 {
		return defaultTimeout
	}
	return time.Duration(s.TimeoutMS) * time.Millisecond
}

// want is what must be true on a tier.
func (s Step) want(t Tier) Want {
	if w, ok := s.Without[t]; ok {
		return w
	}
	return s.Want
}

// Want is what must be true of an answer; its words are those of a Result in docs/reference/json.md. A field that is not set is
// not looked at.
type Want struct {
	Ended      []agent.Ended `json:"ended,omitempty"` // one of
	Phase      []agent.Phase `json:"phase,omitempty"` // one of
	Want       []agent.Want  `json:"want,omitempty"`  // one of
	Listens    *bool         `json:"listens,omitempty"`
	Attention  string        `json:"attention,omitempty"`
	ExitCode   *int          `json:"exit_code,omitempty"`
	Signal     string        `json:"signal,omitempty"`
	Error      agent.Code    `json:"error,omitempty"`
	Note       string        `json:"note,omitempty"` // among the notes
	Cwd        string        `json:"cwd,omitempty"`
	Foreground string        `json:"foreground,omitempty"` // base name of the program in front
	Basis      []agent.Basis `json:"basis,omitempty"`      // one of them is the strongest layer

	Prompt *Text `json:"prompt,omitempty"`
	Output *Text `json:"output,omitempty"` // as a person would read it; of exec standard output, exact
	Bytes  *Text `json:"bytes,omitempty"`  // of run: what the terminal printed, exact, \r\n at line ends
	Stderr *Text `json:"stderr,omitempty"` // of exec
	Screen *Text `json:"screen,omitempty"` // what comes with the answer of a terminal's screen; empty where nothing does

	Steps []string `json:"steps,omitempty"` // of an interrupt's receipt: these were sent, in this order
	Died  bool     `json:"died,omitempty"`  // of an interrupt's receipt: something died, and nothing is left

	LatestMS   int64 `json:"latest_ms,omitempty"` // the answer came within this time, as the caller saw it
	EarliestMS int64 `json:"earliest_ms,omitempty"`
}

// Text is what must be true of a text.
type Text struct {
	Is      *string  `json:"is,omitempty"`
	Has     []string `json:"has,omitempty"`
	Lacks   []string `json:"lacks,omitempty"`
	Matches string   `json:"matches,omitempty"` // a regular expression of Go's, anywhere in it
	SHA256  string   `json:"sha256,omitempty"`
	Length  *int     `json:"length,omitempty"` // in bytes
}

// programs are those that the cases need, each once.
func programs(cases []Case) []string {
	var all []string
	for _, c := range cases {
		all = append(all, c.Needs...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
