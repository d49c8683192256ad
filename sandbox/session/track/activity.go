package track

import "time"

// activity is when a terminal printed and was typed to.
type activity struct {
	printed  time.Time // when it last printed
	reads    uint64    // how often it did
	writes   uint64    // begins and ends of input
	typed    time.Time // when the last input ended
	answered uint64    // reads at the last input: what is more may be an answer
	before   Reader    // who read before the last input
}

// Reader is who a look found reading: two that are equal are one wait for input.
type Reader struct {
	Pid     int
	Runs    uint64
	Blocked bool
}

// Reader returns who reads by the facts.
func (f Facts) Reader() Reader { return Reader{Pid: f.Pid, Runs: f.Runs, Blocked: f.Blocked} }

// Printed notes output, marks included.
func (a *activity) Printed(now time.Time) {
	a.printed = now
	a.reads++
}

// Writes notes that input is about to be written. No look from before Wrote counts.
func (a *activity) Writes() { a.writes++ }

// Wrote notes that the input has been written.
func (a *activity) Wrote(now time.Time) {
	a.writes++
	a.typed = now
}

// Typed notes that the input which is about to be written wants an answer: what is on the screen is
// none.
func (a *activity) Typed() { a.answered = a.reads }

// Was notes who read before the input, so that their wait is not taken for an answer to it.
func (a *activity) Was(r Reader) { a.before = r }

// Epoch changes with every output and every input: what was seen in another one no longer counts.
func (a *activity) Epoch() uint64 { return a.reads + a.writes }

// Quiet returns how long nothing has been printed, nor typed: who has just been typed to has yet to
// answer.
func (a *activity) Quiet(now time.Time) time.Duration {
	return min(now.Sub(a.printed), now.Sub(a.typed))
}

// Silent returns how long nothing has been printed.
func (a *activity) Silent(now time.Time) time.Duration { return now.Sub(a.printed) }
