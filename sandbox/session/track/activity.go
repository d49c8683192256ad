package track

import "time"

// activity is when a terminal had output and input.
type activity struct {
	printed  time.Time // last output
	reads    uint64    // number of outputs
	writes   uint64    // number of starts and ends of input
	typed    time.Time // end of the last input
	answered uint64    // reads at the last input; later output may be an answer
	before   Reader    // reader before the last input
	at       Moment    // of the current observation, other than output
}

// observed is the activity of a terminal, and its part of the trace.
type observed struct {
	activity
	*ring      // what the trackers of the session observed; nil during a replay
	number int // in the ring
}

// Reader is a process that a look found reading. Two equal values are one and the same wait for
// input.
type Reader struct {
	Pid     int    `json:"pid,omitempty"`
	Runs    uint64 `json:"runs,omitempty"`
	Blocked bool   `json:"blocked,omitempty"`
}

// Reader returns the process that reads, according to the facts.
func (f Facts) Reader() Reader { return Reader{Pid: f.Pid, Runs: f.Runs, Blocked: f.Blocked} }

// Printed records output, including marks.
func (o *observed) Printed(now time.Time) {
	o.notePrinted(now)
	o.printed = now
	o.reads++
}

// Writes records that input is about to be written. Looks from before Wrote do not count.
func (o *observed) Writes() {
	o.note(KindWrites, Moment{}, nil)
	o.writes++
}

// Wrote records that the input has been written.
func (o *observed) Wrote(now time.Time) {
	o.note(KindWrote, Moment{Time: now}, nil)
	o.writes++
	o.typed = now
}

// Typed records that the input about to be written expects an answer. What the screen shows now is
// not that answer.
func (o *observed) Typed() {
	o.note(KindExpects, Moment{}, nil)
	o.answered = o.reads
}

// Was records the reader before the input, whose wait is not an answer to the input.
func (o *observed) Was(r Reader) {
	o.note(KindReader, Moment{}, &With{Reader: &r})
	o.before = r
}

// Epoch returns a number that changes with every output and input. A look from another epoch does
// not count.
func (a *activity) Epoch() uint64 { return a.reads + a.writes }

// Quiet returns the time since the last output or input. A program that has just received input has
// yet to answer it.
func (a *activity) Quiet(now time.Time) time.Duration {
	return min(now.Sub(a.printed), now.Sub(a.typed))
}

// Seen returns the end of the output that the state takes into account. What was printed since has
// not been looked at.
func (a *activity) Seen() uint64 { return a.at.End }

// Silent returns the time since the last output.
func (a *activity) Silent(now time.Time) time.Duration { return now.Sub(a.printed) }
