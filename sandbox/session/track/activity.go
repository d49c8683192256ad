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
}

// Reader is a process that a look found reading. Two equal values are one and the same wait for
// input.
type Reader struct {
	Pid     int
	Runs    uint64
	Blocked bool
}

// Reader returns the process that reads, according to the facts.
func (f Facts) Reader() Reader { return Reader{Pid: f.Pid, Runs: f.Runs, Blocked: f.Blocked} }

// Printed records output, including marks.
func (a *activity) Printed(now time.Time) {
	a.printed = now
	a.reads++
}

// Writes records that input is about to be written. Looks from before Wrote do not count.
func (a *activity) Writes() { a.writes++ }

// Wrote records that the input has been written.
func (a *activity) Wrote(now time.Time) {
	a.writes++
	a.typed = now
}

// Typed records that the input about to be written expects an answer. What the screen shows now is
// not that answer.
func (a *activity) Typed() { a.answered = a.reads }

// Was records the reader before the input, whose wait is not an answer to the input.
func (a *activity) Was(r Reader) { a.before = r }

// Epoch returns a number that changes with every output and input. A look from another epoch does
// not count.
func (a *activity) Epoch() uint64 { return a.reads + a.writes }

// Quiet returns the time since the last output or input. A program that has just received input has
// yet to answer it.
func (a *activity) Quiet(now time.Time) time.Duration {
	return min(now.Sub(a.printed), now.Sub(a.typed))
}

// Silent returns the time since the last output.
func (a *activity) Silent(now time.Time) time.Duration { return now.Sub(a.printed) }
