// Package corpus has labelled traces of terminals: what a tracker observed, and from when on a
// person was needed in truth. It reads and writes case files, replays cases, and computes how often
// and how soon sandboxd was right. Use it to keep a wrong verdict as a case, and in tests.
package corpus

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Verdict says whether a terminal needs a person.
type Verdict string

// Verdicts.
const (
	// Working: no program asks. It works, or the shell is at its prompt or has ended.
	Working     Verdict = "working"
	NeedsPerson Verdict = "needs-person" // a program, or the shell at PS2, wants input
)

// ParseVerdict parses the name of a verdict.
func ParseVerdict(name string) (Verdict, error) {
	switch v := Verdict(name); v {
	case Working, NeedsPerson:
		return v, nil
	}
	return "", wire.Errorf(wire.CodeUsage, "verdict %.40q: use %s or %s", name, Working,
		NeedsPerson)
}

// verdictOf returns Working or NeedsPerson.
func verdictOf(asks bool) Verdict {
	if asks {
		return NeedsPerson
	}
	return Working
}

// Class is how a program takes input, by which goals differ.
type Class string

// Classes of programs.
const (
	Blocks  Class = "blocks"  // it waits for input and does nothing else
	Listens Class = "listens" // it reads input while it works, as full-screen programs do
)

// Label is the truth from a moment on; an empty one is not known. The moment is a time, or that at
// which output reached an offset of the log, or that of the next input.
type Label struct {
	Is    Verdict `json:"is"`
	At    int64   `json:"at,omitempty"` // microseconds of Unix time
	End   uint64  `json:"end,omitempty"`
	Input bool    `json:"input,omitempty"` // the next input after At, if there is one
	Start bool    `json:"start,omitempty"` // the program starts, or is ready for the first time
}

// Header is the first line of a case.
type Header struct {
	Version int     `json:"case"` // of the format: 1
	Program string  `json:"program"`
	Class   Class   `json:"class,omitempty"`
	Said    Verdict `json:"said"` // by sandboxd, at the end
	Is      Verdict `json:"is"`   // in truth, at the end
	Labels  []Label `json:"labels,omitempty"`
	// From is start if the trace begins with the session, or seed if its start is the state of the
	// trackers at a later moment.
	From     string     `json:"from"`
	Captured string     `json:"captured,omitempty"` // RFC 3339
	Software string     `json:"software,omitempty"` // version of sandboxd
	State    wire.State `json:"state"`              // at the end, as sandboxd reported it
}

// Case is a labelled trace.
type Case struct {
	Header
	Trace track.Trace
}

// FormatVersion is the version of case files that this package reads and writes.
const FormatVersion = 1

// New returns the case of a trace, without labels. trace is a [track.Trace] as JSON.
func New(trace []byte) (*Case, error) {
	c := &Case{Header: Header{Version: FormatVersion, From: "start"}}
	if err := json.Unmarshal(trace, &c.Trace); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	if len(c.Trace.Seeds) > 0 {
		c.From = "seed"
	}
	c.State, c.Trace.State = c.Trace.State, wire.State{}
	if f := c.State.Foreground; f != nil && len(f.Argv) > 0 {
		c.Program = f.Argv[0]
	}
	c.Said = verdictOf(track.Asks(c.State))
	return c, nil
}

// Extend adds what a later trace of the same session has since a time, up to which c is complete:
// the session keeps only its last observations. Its state is that of later.
func (c *Case) Extend(later *Case, since time.Time) error {
	first := func(o track.Observation) bool { return o.At >= since.UnixMicro() }
	if !slices.ContainsFunc(later.Trace.Observations, func(o track.Observation) bool {
		return o.At > 0 && !first(o)
	}) {
		return errors.New("the trace has lost its start")
	}
	part, err := track.Since(later.Trace, since)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(c.Trace.Observations, first); i >= 0 {
		c.Trace.Observations = c.Trace.Observations[:i]
	}
	c.Trace.Observations = append(c.Trace.Observations, part.Observations...)
	c.State, c.Said = later.State, later.Said
	return nil
}

// seedLine is a line with a seed.
type seedLine struct {
	Seed *track.Seed `json:"seed"`
}

// Write writes the case as JSON lines: the header, the seeds and the observations. What a terminal
// would obey is escaped.
func (c *Case) Write(w io.Writer) error {
	e := json.NewEncoder(text.JSONWriter(w))
	e.SetEscapeHTML(false)
	if err := e.Encode(c.Header); err != nil {
		return err
	}
	for i := range c.Trace.Seeds {
		if err := e.Encode(seedLine{&c.Trace.Seeds[i]}); err != nil {
			return err
		}
	}
	for i := range c.Trace.Observations {
		if err := e.Encode(&c.Trace.Observations[i]); err != nil {
			return err
		}
	}
	return nil
}

// Limits of case files, which may come from others. A captured trace has less than 1 MiB.
const (
	maxLine  = 1 << 20  // bytes
	maxFile  = 64 << 20 // bytes, uncompressed
	maxSteps = 1 << 20  // observations of a case, with their repetitions
)

// check returns an error for values that no case file has.
func (h *Header) check() error {
	if h.Version != FormatVersion {
		return fmt.Errorf("case file of version %d, want %d", h.Version, FormatVersion)
	}
	all := []Verdict{h.Said, h.Is}
	for _, l := range h.Labels {
		all = append(all, l.Is)
	}
	for _, v := range all {
		if _, err := ParseVerdict(string(v)); v != "" && err != nil {
			return err
		}
	}
	return nil
}

// Read reads the cases of a file, which may be compressed with gzip, and passes each to f.
func Read(r io.Reader, f func(*Case) error) error {
	b := bufio.NewReader(r)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return err
		}
		b = bufio.NewReader(z)
	}
	left := &io.LimitedReader{R: b, N: maxFile}
	s := bufio.NewScanner(left)
	s.Buffer(nil, maxLine)
	var c *Case
	steps := 0 // of c
	for n := 1; s.Scan(); n++ {
		line := s.Bytes()
		var err error
		switch {
		case bytes.HasPrefix(line, []byte(`{"case":`)):
			if c != nil {
				if err := f(c); err != nil {
					return err
				}
			}
			c, steps = new(Case), 0
			if err = json.Unmarshal(line, &c.Header); err == nil {
				err = c.check()
			}
		case c == nil:
			err = errors.New("not a case file")
		case bytes.HasPrefix(line, []byte(`{"seed":`)):
			var seed seedLine
			if err = json.Unmarshal(line, &seed); err == nil && seed.Seed == nil {
				err = errors.New("an empty seed")
			}
			if err == nil {
				c.Trace.Seeds = append(c.Trace.Seeds, *seed.Seed)
			}
		default:
			var o track.Observation
			if err = json.Unmarshal(line, &o); err == nil {
				c.Trace.Observations = append(c.Trace.Observations, o)
			}
			if steps++; o.Do != track.KindOutput { // outputs in a row are one step
				steps += int(o.More)
			}
			if steps > maxSteps {
				err = fmt.Errorf("a case with more than %d observations", maxSteps)
			}
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	switch err := s.Err(); {
	case err != nil:
		return err
	case left.N == 0:
		return fmt.Errorf("a case file of more than %d MiB", maxFile>>20)
	case c == nil:
		return errors.New("not a case file: it is empty")
	}
	return f(c)
}

// Replay replays the trace and returns the verdict at its end.
func (c *Case) Replay() (Verdict, error) {
	last := Working
	if n := len(c.Trace.Seeds); n > 0 && len(c.Trace.Observations) == 0 {
		return "", errors.New("the trace has no observations")
	}
	err := track.Replay(c.Trace, func(s track.Step) { last = verdictOf(s.Asks) })
	return last, err
}

// Moment is a time at which a verdict or the truth changed.
type Moment struct {
	At time.Time
	Is Verdict
}

// Transition is a change of the truth, and whether and how soon the verdict followed.
type Transition struct {
	To Verdict
	// First: it is the first of Header.Labels. The truth before it is not known.
	First   bool
	Start   bool // of the label
	At      time.Time
	Found   bool // before the truth changed again
	Latency time.Duration
	// Wrong is how often the verdict changed to the opposite while this was the truth, or stayed
	// the opposite.
	Wrong int
}

// settleTime is how long the verdict may follow a change to Working.
const settleTime = 250 * time.Millisecond

// Judge replays the case and compares the verdicts with the labels.
func (c *Case) Judge() ([]Transition, error) {
	var said []Moment
	if n := len(c.Trace.Seeds); n > 0 {
		said = append(said, Moment{Is: verdictOf(track.Asks(c.Trace.Seeds[n-1].State))})
	}
	var printed time.Time
	labels := c.labels()
	err := track.Replay(c.Trace, func(s track.Step) {
		for i := range labels {
			if l := &labels[i]; l.End > 0 && l.At == 0 && s.Observation.End >= l.End {
				l.At = s.At.UnixMicro()
				if !printed.IsZero() {
					l.At = printed.UnixMicro()
				}
			}
			if l := &labels[i]; l.Input && s.Observation.Do == track.KindInput &&
				s.Observation.At >= l.At {
				l.At, l.Input = s.Observation.At, false
			}
		}
		if s.Observation.Do == track.KindOutput {
			printed = s.At
		}
		if v := verdictOf(s.Asks); !s.At.IsZero() &&
			(len(said) == 0 || said[len(said)-1].Is != v) {
			said = append(said, Moment{s.At, v})
		}
	})
	if err != nil {
		return nil, err
	}
	labels = slices.DeleteFunc(labels, func(l Label) bool { return l.At == 0 })
	slices.SortStableFunc(labels, func(a, b Label) int { return int(a.At - b.At) })
	var all []Transition
	for i, l := range labels {
		if i > 0 && labels[i-1].Is == l.Is {
			continue
		}
		end := time.Time{}
		for _, next := range labels[i+1:] {
			if next.Is != l.Is {
				end = time.UnixMicro(next.At)
				break
			}
		}
		if l.Is != "" {
			t := transition(l, end, said)
			t.First = i == 0 && len(c.Labels) > 0
			all = append(all, t)
		}
	}
	return all, nil
}

// labels returns the labels, of which the header's own is that at the end.
func (c *Case) labels() []Label {
	if len(c.Labels) > 0 {
		return slices.Clone(c.Labels)
	}
	all := c.Trace.Observations
	for i := len(all) - 1; i >= 0; i-- {
		if at := max(all[i].At, all[i].To); at > 0 {
			return []Label{{Is: c.Is, At: at}}
		}
	}
	return nil
}

// transition compares the verdicts with the truth from l to end; a zero end is that of the trace.
func transition(l Label, end time.Time, said []Moment) Transition {
	t := Transition{To: l.Is, Start: l.Start, At: time.UnixMicro(l.At)}
	now := Working // verdict at t.At
	for _, m := range said {
		if !m.At.After(t.At) {
			now = m.Is
		}
	}
	if now == l.Is {
		t.Found = true
	}
	for _, m := range said {
		switch {
		case !m.At.After(t.At) || !end.IsZero() && !m.At.Before(end):
		case m.Is == l.Is && !t.Found:
			t.Found, t.Latency = true, m.At.Sub(t.At)
			if l.Is == Working && t.Latency > settleTime {
				t.Wrong++
			}
		case m.Is != l.Is:
			t.Wrong++
		}
	}
	if !t.Found && l.Is == Working {
		t.Wrong++
	}
	return t
}
