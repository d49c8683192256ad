package track

import (
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A Trace is what the trackers of a session observed last, in order. [Replay] makes new trackers
// observe the same, which then report the same states.
//
// Of text it has what stood before the cursor, and arguments of programs. It has no input, no
// directories and no names of users, and nothing of private mode.
type Trace struct {
	State wire.State `json:"state"` // at the end, as reported
	// Seeds are the trackers before the first observation: that of the session's shell, and those
	// of shells inside it. Without them, the trace begins with the session.
	Seeds        []Seed        `json:"seeds,omitempty"`
	Observations []Observation `json:"observations"`
}

// Kind is the kind of an Observation. Each is a method of Tracker.
type Kind uint8

// Kinds of observations.
const (
	KindRestart  Kind = iota + 1 // Restart
	KindLeave                    // Leave
	KindKnow                     // Know
	KindOutput                   // Printed
	KindWrites                   // Writes
	KindExpects                  // Typed
	KindReader                   // Was
	KindWrote                    // Wrote
	KindInput                    // Input
	KindKey                      // Key
	KindMark                     // Mark
	KindTick                     // Tick
	KindGive                     // Give
	KindTypes                    // Types
	KindWithdraw                 // Withdraw
	KindStart                    // Start
	KindForge                    // Forge
	KindErased                   // Erased
	KindLook                     // Look
	KindExit                     // Exit
	KindClose                    // Close
)

var kindNames = []string{"", "restart", "leave", "know", "output", "writes", "expects", "reader",
	"wrote", "input", "key", "mark", "tick", "give", "types", "withdraw", "start", "forge",
	"erased", "look", "exit", "close"}

// String returns the name of the kind, as in JSON.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return ""
}

// MarshalText returns the name of the kind.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the name of a kind. An unknown name is the kind 0.
func (k *Kind) UnmarshalText(text []byte) error {
	*k = Kind(max(slices.Index(kindNames, string(text)), 0))
	return nil
}

// Observation is one observation of a tracker, or several equal ones in a row. Times are in
// microseconds of Unix time.
type Observation struct {
	Do      Kind   `json:"do"`
	Tracker uint16 `json:"tracker,omitempty"` // number; restart: of the new one
	More    uint32 `json:"more,omitempty"`    // further ones, equal to this
	At      int64  `json:"at,omitempty"`
	To      int64  `json:"to,omitempty"` // of the last, with More
	End     uint64 `json:"end,omitempty"`
	Look    *Seen  `json:"look,omitempty"`
	With    *With  `json:"with,omitempty"`
}

// With is what only some kinds of observations have.
type With struct {
	Held    uint64       `json:"held,omitempty"`    // Moment.Held
	Other   int          `json:"other,omitempty"`   // restart: the tracker before; leave: outer
	Options *Options     `json:"options,omitempty"` // restart
	ByLine  bool         `json:"by_line,omitempty"` // restart: Options.Prompt is set
	Why     wire.Ended   `json:"why,omitempty"`     // leave
	Exit    *int         `json:"exit,omitempty"`    // leave, exit
	Signal  string       `json:"signal,omitempty"`  // exit
	Image   uint64       `json:"image,omitempty"`   // know
	Reader  *Reader      `json:"reader,omitempty"`  // reader
	Ends    bool         `json:"ends,omitempty"`    // input: it ends a line
	Calls   uint64       `json:"calls,omitempty"`   // input
	Mark    *MarkSeen    `json:"mark,omitempty"`    // mark
	Front   *Front       `json:"front,omitempty"`   // mark, tick
	Busy    bool         `json:"busy,omitempty"`    // tick
	Command *CommandSeen `json:"command,omitempty"` // give
	Basis   wire.Basis   `json:"basis,omitempty"`   // give
}

// MarkSeen is a mark of the shell, without its texts.
type MarkSeen struct {
	Kind   marks.Kind `json:"kind"`
	Exit   int        `json:"exit,omitempty"`
	Run    bool       `json:"run,omitempty"`
	Number uint64     `json:"number,omitempty"`
}

// CommandSeen is a Command, without its texts and its output.
type CommandSeen struct {
	Number     uint64 `json:"number,omitempty"`
	Typed      bool   `json:"typed,omitempty"`
	Started    bool   `json:"started,omitempty"`
	Unfinished bool   `json:"unfinished,omitempty"`
	Unread     bool   `json:"unread,omitempty"`
	Unsure     bool   `json:"unsure,omitempty"`
	Ended      bool   `json:"ended,omitempty"`
	Over       bool   `json:"over,omitempty"`
}

// Seen is a Look, without what has no influence on the state or is text of another kind.
type Seen struct {
	View
	Argv []string `json:"argv,omitempty"`
}

// View is the part of Seen that can be compared.
type View struct {
	Group      int       `json:"group,omitempty"` // Facts.Foreground
	PID        int       `json:"pid,omitempty"`
	Shell      int       `json:"shell,omitempty"`       // Look.Shell
	Image      uint64    `json:"image,omitempty"`       // Facts.ShellImage
	InFront    bool      `json:"in_front,omitempty"`    // Facts.ShellIsForeground
	Blocked    bool      `json:"blocked,omitempty"`     //
	Listens    bool      `json:"listens,omitempty"`     //
	OnlyTimers bool      `json:"only_timers,omitempty"` //
	Opaque     bool      `json:"opaque,omitempty"`      //
	Pending    bool      `json:"pending,omitempty"`     //
	Blind      bool      `json:"blind,omitempty"`       // Look.Err is set
	Alt        bool      `json:"alt,omitempty"`         //
	Blank      bool      `json:"blank,omitempty"`       //
	Answers    bool      `json:"answers,omitempty"`     //
	Anew       bool      `json:"anew,omitempty"`        //
	Prompts    bool      `json:"prompts,omitempty"`     // Options.Prompt(Look.Before)
	Modes      ModesSeen `json:"modes,omitzero"`        //
	Want       wire.Want `json:"want,omitempty"`
	Before     string    `json:"before,omitempty"`
	Runs       uint64    `json:"runs,omitempty"`
	Line       uint64    `json:"line,omitempty"`
	Calls      uint64    `json:"calls,omitempty"`
	Said       Said      `json:"said,omitzero"`
	Inside     Inside    `json:"inside,omitzero"` // Facts.Shell
}

// ModesSeen are Look.Modes.
type ModesSeen struct {
	Known bool `json:"known"`
	Modes
}

// Said is a Statement, with its time in microseconds.
type Said struct {
	Status string `json:"status,omitempty"`
	Count  uint64 `json:"count,omitempty"`
	At     uint64 `json:"at,omitempty"`
	When   int64  `json:"when,omitempty"`
}

// Inside is a PromptShell. Its user is left out.
type Inside struct {
	Is    bool   `json:"is"`
	Name  string `json:"name,omitempty"`
	PID   int    `json:"pid,omitempty"`
	Image uint64 `json:"image,omitempty"`
}

const (
	// halfTrace is the size of each half of a ring in bytes, as estimated. When a half is full, the
	// other one is dropped. So a trace has between one and two halves.
	halfTrace = 96 << 10
	// maxArgv is the maximal length of arguments in a trace, and maxArgs their number.
	maxArgv, maxArgs = 256, 16
	// maxBefore is the maximal length of the text before the cursor, of which the end counts.
	maxBefore = 1 << 10
)

// Estimated sizes in bytes.
const (
	sizeObservation = 64
	sizeSeen        = 288
	sizeWith        = 192
	sizeSeed        = 768
	sizeText        = 16 // of a string, besides its bytes
)

// ring keeps the last observations of all trackers of a session.
type ring struct {
	base   time.Time  // all times are relative to it, so that a change of the clock has no effect
	most   int        // size of a half
	old    half       // the half before
	now    half       // the half that grows
	number int        // of the newest tracker
	all    []*Tracker // in front is the last
	hidden bool       // private mode: nothing is kept
}

// half is a part of a ring that can be replayed alone.
type half struct {
	seeds []Seed
	all   []Observation
	bytes int
	last  *Seen // of the newest look
}

func newRing(now time.Time) *ring { return &ring{base: now, most: halfTrace} }

// stamp returns a time as in traces; 0 is the zero time.
func (r *ring) stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return r.base.UnixMicro() + t.Sub(r.base).Microseconds()
}

// Trace returns what the trackers of the session observed last.
func (r *ring) Trace(now time.Time) Trace {
	if len(r.old.all) == 0 {
		return r.Recent(now)
	}
	trace := r.Recent(now)
	trace.Seeds = r.old.seeds
	trace.Observations = slices.Concat(r.old.all, r.now.all)
	return trace
}

// Recent is Trace without the older half of the observations.
func (r *ring) Recent(now time.Time) Trace {
	trace := Trace{Seeds: r.now.seeds, Observations: slices.Clone(r.now.all)}
	if n := len(r.all); n > 0 {
		trace.State = publicState(r.all[n-1].State(now))
	}
	return trace
}

// Hide begins private mode: what is observed from now on is not in the trace.
func (r *ring) Hide() { r.hidden = true }

// Reveal ends private mode. The trace begins anew, with the trackers as they are now, but without
// text and programs of private mode.
func (r *ring) Reveal() {
	for _, t := range r.all {
		t.state.Prompt, t.state.Program, t.state.Foreground = "", "", nil
	}
	r.hidden, r.old = false, half{}
	r.now = half{seeds: r.seeds()}
}

// room begins a new half if the current one is full.
func (r *ring) room() {
	if r.now.bytes < r.most {
		return
	}
	clear(r.old.all)
	all := r.old.all[:0]
	r.old = r.now
	r.now = half{seeds: r.seeds(), all: all}
	r.now.bytes = sizeSeed * len(r.now.seeds)
}

// seeds returns all trackers as they are now.
func (r *ring) seeds() []Seed {
	var all []Seed
	for _, t := range r.all {
		all = append(all, seedOf(t, r))
	}
	return all
}

// joins notes that t is the tracker of the session's next terminal, or of a shell in the front one.
// before is the number of the tracker before it.
func (r *ring) joins(t *Tracker, before int, at Moment) {
	if r == nil {
		return
	}
	r.number++
	t.number = r.number
	opt := t.opt.public()
	t.note(KindRestart, at, &With{Other: before, Options: &opt, ByLine: t.opt.Prompt != nil})
	if t.opt.Process == nil {
		clear(r.all)
		r.all = r.all[:0]
	}
	r.all = append(r.all, t)
}

// leaves notes that outer is in front again.
func (r *ring) leaves(outer *Tracker) {
	if r == nil {
		return
	}
	if i := slices.Index(r.all, outer); i >= 0 {
		clear(r.all[i+1:])
		r.all = r.all[:i+1]
	}
}

// note records an observation. It is called before the tracker changes.
func (o *observed) note(do Kind, at Moment, with *With) {
	r := o.ring
	if r == nil || r.hidden {
		return
	}
	r.room()
	if at.Held > 0 {
		if with == nil {
			with = new(With)
		}
		with.Held = at.Held
	}
	r.now.add(Observation{Do: do, Tracker: uint16(o.number), At: r.stamp(at.Time), End: at.End,
		With: with})
}

func (h *half) add(o Observation) {
	h.bytes += sizeObservation
	if o.Look != nil {
		h.bytes += sizeSeen + len(o.Look.Before)
	}
	if o.With != nil {
		h.bytes += sizeWith
	}
	h.all = append(h.all, o)
}

// notePrinted records output. Successive outputs are one observation: floods cost no memory.
func (o *observed) notePrinted(now time.Time) {
	r := o.ring
	if r == nil || r.hidden {
		return
	}
	at := r.stamp(now)
	if n := len(r.now.all); n > 0 {
		last := &r.now.all[n-1]
		if last.Do == KindOutput && int(last.Tracker) == o.number && last.More+1 != 0 {
			last.More++
			last.To = at
			return
		}
	}
	o.note(KindOutput, Moment{Time: now}, nil)
}

// noteLook records a look after the tracker has changed by it. Successive equal looks that change
// nothing are one observation. prompts is what Options.Prompt returns.
func (o *observed) noteLook(l *Look, at Moment, prompts, changes bool) {
	r := o.ring
	if r == nil || r.hidden {
		return
	}
	seen := seenBy(r, l)
	seen.Prompts = prompts
	h := &r.now
	if n := len(h.all); n > 0 && !changes && !seen.Anew {
		last := &h.all[n-1]
		if last.Do == KindLook && int(last.Tracker) == o.number && last.End == at.End &&
			last.held() == at.Held && last.More+1 != 0 && last.Look.equal(seen) {
			last.More++
			last.To = r.stamp(at.Time)
			return
		}
	}
	if h.last != nil && slices.Equal(h.last.Argv, l.Facts.Argv) {
		seen.Argv = h.last.Argv
	} else {
		seen.Argv = shortArgv(l.Facts.Argv)
		for _, a := range seen.Argv {
			h.bytes += sizeText + len(a)
		}
	}
	var with *With
	if at.Held > 0 {
		with = &With{Held: at.Held}
	}
	seen.Before = strings.Clone(seen.Before)
	kept := new(Seen)
	*kept = seen
	h.last = kept
	h.add(Observation{Do: KindLook, Tracker: uint16(o.number), At: r.stamp(at.Time), End: at.End,
		Look: kept, With: with})
}

func (o *Observation) held() uint64 {
	if o.With == nil {
		return 0
	}
	return o.With.Held
}

// equal reports whether a later look saw the same. How often a program ran does not matter if it
// neither waits nor is judged by that.
func (s *Seen) equal(later Seen) bool {
	a, b := s.View, later.View
	a.Anew = false
	if !a.Blocked && !a.Blind && !a.Opaque {
		a.Runs, b.Runs = 0, 0
	}
	return a == b && slices.Equal(s.Argv, later.Argv)
}

// seenBy returns l as it is in traces.
func seenBy(r *ring, l *Look) Seen {
	f := &l.Facts
	v := View{Group: f.Foreground, PID: f.Pid, Shell: l.Shell, Image: f.ShellImage,
		InFront: f.ShellIsForeground, Blocked: f.Blocked, Listens: f.Listens,
		OnlyTimers: f.OnlyTimers, Opaque: f.Opaque, Pending: f.Pending, Blind: l.Err != nil,
		Alt: l.Alt, Blank: l.Blank, Answers: l.Answers, Anew: l.Anew, Want: f.Want,
		Before: l.Before[max(0, len(l.Before)-maxBefore):], Runs: f.Runs, Line: l.Line,
		Calls: l.Calls}
	if l.Modes != nil {
		v.Modes = ModesSeen{Known: true, Modes: *l.Modes}
	}
	if s := l.Said; s != (Statement{}) {
		v.Said = Said{string(s.Status), s.Count, s.At, r.stamp(s.When)}
	}
	if s := f.Shell; s != nil {
		v.Inside = Inside{true, s.Name, s.PID, s.Image}
	}
	return Seen{View: v, Argv: f.Argv}
}

// shortArgv returns arguments that fit a trace.
func shortArgv(argv []string) []string {
	var all []string
	left := maxArgv
	for _, a := range argv[:min(len(argv), maxArgs)] {
		// All arguments of a process may be parts of one long string.
		a = strings.Clone(a[:min(len(a), left)])
		left -= len(a)
		all = append(all, a)
	}
	return all
}
