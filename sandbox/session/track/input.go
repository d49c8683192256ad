package track

import (
	"bytes"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Reader is who a look found reading: two that are equal are one wait for input.
type Reader struct {
	Pid     int
	Runs    uint64
	Blocked bool
}

// Reader returns who reads by the facts.
func (f Facts) Reader() Reader { return Reader{Pid: f.Pid, Runs: f.Runs, Blocked: f.Blocked} }

// Writes notes that input is about to be written. No look from before Wrote counts.
func (t *Tracker) Writes() { t.writes++ }

// Wrote notes that the input has been written.
func (t *Tracker) Wrote(now time.Time) {
	t.writes++
	t.typed = now
}

// Typed notes that the input which is about to be written wants an answer: what is on the screen is
// none.
func (t *Tracker) Typed() { t.answered = t.reads }

// Was notes who read before the input, so that their wait is not taken for an answer to it.
func (t *Tracker) Was(r Reader) { t.before = r }

// Input makes a state that the program is given data for no longer the present one. What it is
// instead is for marks and looks to say. calls counts calls for attention so far.
func (t *Tracker) Input(data []byte, calls uint64, at Moment) News {
	t.at = at
	t.called = calls
	switch t.state.Phase {
	case wire.PhaseWaiting, wire.PhaseOpaque:
	case wire.PhasePrompt, wire.PhaseContinuation:
		// Only what ends a line or a shell takes a shell from its prompt.
		if !bytes.ContainsAny(data, "\r\n\x03\x04") {
			return News{}
		}
	case wire.PhaseRunning:
		if !t.state.Listens {
			return News{}
		}
	default:
		return News{}
	}
	t.become(wire.State{Phase: wire.PhaseRunning, Foreground: t.state.Foreground, Basis: t.state.Basis})
	return t.tell()
}
