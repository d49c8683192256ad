// Package conformance is a terminal conformance suite. It runs cases against a sandbox over SSH and
// reports which of them pass: what a terminal does, and what its state is reported as. The cases
// are data in package corpus, so that other programs can run them against other products.
//
// The package does not depend on how a session determines its state. It checks the reported state
// and the layers of evidence for it.
package conformance

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Tier is the set of layers of evidence that a session has.
type Tier string

const (
	Full      Tier = "full"
	NoProcess Tier = "no-process" // no process evidence: another machine, gVisor, access denied
	NoMarks   Tier = "no-marks"   // a shell without integration
	Neither   Tier = "neither"
)

// Tiers lists all tiers, strongest first.
var Tiers = []Tier{Full, NoProcess, NoMarks, Neither}

// Without returns the layers that a session of the tier lacks.
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

// Marks reports whether shells print marks on the tier.
func (t Tier) Marks() bool { return t == Full || t == NoProcess }

// Case is one conformance case. Each runs in a new session.
type Case struct {
	Group string `json:"group"`
	Name  string `json:"case"`  // unique in its group
	About string `json:"about"` // what must be true, for readers

	Needs []string `json:"needs,omitempty"` // programs that the sandbox must have
	// needs working setuid programs: a sandbox created with --sudo
	Privileged bool   `json:"privileged,omitempty"`
	Files      []File `json:"files,omitempty"` // written before Setup
	// shell command that runs without a terminal before the session; it must exit with 0
	Setup string `json:"setup,omitempty"`
	Start Start  `json:"start,omitzero"` // how to start the session
	Steps []Step `json:"steps,omitempty"`
	// shell command that runs without a terminal after the session
	Cleanup string `json:"cleanup,omitempty"`

	// Cannot has the tiers on which the case cannot pass, with the reason. It must pass on all
	// others.
	Cannot map[Tier]string `json:"cannot,omitempty"`

	// Func is the name of Do, which replaces Steps in cases that need Go code, for example to break
	// connections. Other programs skip these cases.
	Func string `json:"func,omitempty"`
	Do   Func   `json:"-"`
}

// ID returns the full name of the case: GROUP/NAME.
func (c Case) ID() string { return c.Group + "/" + c.Name }

// Func is a case in Go. It returns nil if the case passes. ctx bounds it.
type Func func(ctx context.Context, w World) error

// World is the environment of a Func. The Func closes everything that it opens.
type World struct {
	Client *agent.Client
	Tier   Tier

	// Dial returns another client of the same sandbox, whose connection the Func may break. It is
	// nil if the runner cannot dial.
	Dial func(ctx context.Context) (*agent.Client, error)

	// Slow is a factor for time limits on a slow or busy machine. 0 means 1.
	Slow float64
}

// Within returns the time limit d on this machine.
func (w World) Within(d time.Duration) time.Duration {
	return time.Duration(float64(d) * cmp.Or(w.Slow, 1))
}

// Attach starts a new session with the layers of the tier.
func (w World) Attach(ctx context.Context, c *agent.Client) (*agent.Shell, error) {
	return c.Attach(
		ctx,
		agent.ShellOptions{
			Session: wire.NewSession,
			Fresh:   true,
			Start:   agent.Start{Without: w.Tier.Without()},
		},
	)
}

// File is a file of a case. A relative path is relative to the home directory.
type File struct {
	Path string `json:"path"`
	Text string `json:"text"`
	Mode string `json:"mode,omitempty"` // mode for chmod(1), such as 755
}

// Start says how to start the session of a case. The zero value is the sandbox's login shell.
type Start struct {
	Argv []string `json:"argv,omitempty"`
	Env  []string `json:"env,omitempty"`
	Cols int      `json:"cols,omitempty"` // 0 means 200
	Rows int      `json:"rows,omitempty"` // 0 means 50
}

// Verb is what a step does.
type Verb string

const (
	// Run runs Text as a complete command. It types Text on tiers without marks.
	Run       Verb = "run"
	Type      Verb = "type"      // type Text and Enter
	Raw       Verb = "raw"       // type Text without Enter
	Keys      Verb = "keys"      // press Keys
	Wait      Verb = "wait"      // wait for one of the phases For, or for any but running
	Interrupt Verb = "interrupt" // interrupt the program
	Exec      Verb = "exec"      // run Text without a terminal, with Stdin
	Screen    Verb = "screen"    // read the screen; Output is its text
	End       Verb = "end"       // close the session
)

// Step is one call and the expected result.
type Step struct {
	Do    Verb          `json:"do"`
	Text  string        `json:"text,omitempty"`
	Keys  []string      `json:"keys,omitempty"`
	For   []agent.Phase `json:"for,omitempty"`
	Stdin string        `json:"stdin,omitempty"`
	// with Run: interrupt the command at the timeout
	Kill bool `json:"kill,omitempty"`
	// with Run: in the shell behind a relay
	Adopt bool `json:"adopt,omitempty"`
	// name of another session of the case, which the first use starts
	Shell string `json:"shell,omitempty"`

	TimeoutMS int64 `json:"timeout_ms,omitempty"` // 0 means 20,000

	// number of repetitions, each with the same expected result; 0 means once
	Times int `json:"times,omitempty"`

	// Meanwhile are steps to make while this one runs, AfterMS milliseconds after its start.
	Meanwhile []Step `json:"meanwhile,omitempty"`
	AfterMS   int64  `json:"after_ms,omitempty"`

	Want Want `json:"want,omitzero"`

	// Without replaces Want on weaker tiers.
	Without map[Tier]Want `json:"without,omitempty"`
}

// defaultTimeout is the default timeout of a step.
const defaultTimeout = 20 * time.Second

func (s Step) timeout() time.Duration {
	if s.TimeoutMS == 0 {
		return defaultTimeout
	}
	return time.Duration(s.TimeoutMS) * time.Millisecond
}

// want returns the expected result on a tier.
func (s Step) want(t Tier) Want {
	if w, ok := s.Without[t]; ok {
		return w
	}
	return s.Want
}

// Want is an expected result. Its fields are those of a Result in docs/reference/json.md.
// Fields that are not set are not checked.
type Want struct {
	Ended      []agent.Ended `json:"ended,omitempty"` // one of
	Phase      []agent.Phase `json:"phase,omitempty"` // one of
	Want       []agent.Want  `json:"want,omitempty"`  // one of
	Listens    *bool         `json:"listens,omitempty"`
	Attention  string        `json:"attention,omitempty"`
	ExitCode   *int          `json:"exit_code,omitempty"`
	Signal     string        `json:"signal,omitempty"`
	Error      agent.Code    `json:"error,omitempty"`
	Note       string        `json:"note,omitempty"` // one of the notes
	Cwd        string        `json:"cwd,omitempty"`
	Depth      *int          `json:"depth,omitempty"`      // of Result.Shell; 0 for none
	Program    string        `json:"program,omitempty"`    // of an interpreter at its prompt
	Foreground string        `json:"foreground,omitempty"` // base name of the foreground program
	Basis      []agent.Basis `json:"basis,omitempty"`      // the strongest layer is one of these

	Prompt *Text `json:"prompt,omitempty"`
	// rendered output; with Exec, the exact standard output
	Output *Text `json:"output,omitempty"`
	// with Run: exact bytes of the terminal; lines end with \r\n
	Bytes  *Text `json:"bytes,omitempty"`
	Stderr *Text `json:"stderr,omitempty"` // with Exec
	// screen in the result; empty if it has none
	Screen *Text `json:"screen,omitempty"`

	// Receipt.Steps of an interrupt
	Steps []string `json:"steps,omitempty"`
	// Receipt.Died of an interrupt is not empty, and Receipt.Left is
	Died bool `json:"died,omitempty"`

	// limits of the duration of the call, in milliseconds
	LatestMS   int64 `json:"latest_ms,omitempty"`
	EarliestMS int64 `json:"earliest_ms,omitempty"`
}

// Text is an expected text. All fields that are set must match.
type Text struct {
	Is      *string  `json:"is,omitempty"`
	Has     []string `json:"has,omitempty"`
	Lacks   []string `json:"lacks,omitempty"`
	Matches string   `json:"matches,omitempty"` // Go regular expression that matches anywhere
	SHA256  string   `json:"sha256,omitempty"`
	Length  *int     `json:"length,omitempty"` // in bytes
}

// programs returns the programs that the cases need, sorted and without duplicates.
func programs(cases []Case) []string {
	var all []string
	for _, c := range cases {
		all = append(all, c.Needs...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
