package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The schedule of looks: soon after output, since a program usually waits right after a question.
// Then the rests between looks grow.
const (
	firstLook = 300 * time.Microsecond // after output
	// calmLook replaces firstLook while no call waits. The other observers need to know within a
	// second, at next to no cost.
	calmLook = 20 * time.Millisecond
	lastLook = 64 * time.Millisecond // up to here, each rest is twice the last
	// After a long silence, a rest is the silence divided by silentPart, at most silentLook. A
	// program that asks without output is reported that much later.
	silentPart = 16
	silentLook = 250 * time.Millisecond
	// idleLook is the longest rest while the terminal needs input to continue. Then only an
	// unforeseen event changes the state.
	idleLook = time.Second
	// fewOutputs is how many outputs in a row are not a flood yet. A program prints a few times
	// before it asks.
	fewOutputs = 4
	mostFlood  = 6 // longest rest in a flood, a multiple of firstLook

	// sleepBelief is how long a sleeping process is assumed to be in the same system call.
	// readBelief is the same for a reader that two readings agreed on.
	sleepBelief = idleLook
	readBelief  = 16 * time.Second
)

// Belief returns how long the facts of one look may be used for the next, while Still is true.
func (f Facts) Belief() time.Duration {
	if f.Blocked {
		return readBelief
	}
	return sleepBelief
}

// Pace says how long to rest before the next look. The zero value is ready to use.
type Pace struct {
	delay   time.Duration
	outputs int // successive rests that output ended
}

// Rest returns how long to rest.
func (p *Pace) Rest() time.Duration { return max(p.delay, firstLook) }

// Long reports whether the rest is long. New callers, and input without echo, end such a rest.
func (p *Pace) Long() bool { return p.delay > lastLook }

// Fresh reports whether something happened recently, so that the facts of the last look do not
// count.
func (p *Pace) Fresh() bool { return p.delay < lastLook }

// Rested records that a rest was not interrupted.
func (p *Pace) Rested() { p.outputs = 0 }

// Anew restarts the schedule. calm means that no call waits.
func (p *Pace) Anew(calm bool) {
	p.delay = firstLook
	if calm {
		p.delay = calmLook
	}
}

// Output restarts the schedule after output, and returns how long to rest before the next look. In
// a flood of output, looks come less often than output.
func (p *Pace) Output(calm bool) time.Duration {
	p.outputs = min(p.outputs+1, fewOutputs+mostFlood)
	p.Anew(calm)
	return max(p.delay, time.Duration(p.outputs-fewOutputs)*firstLook)
}

// Again makes the next rest the shortest, to confirm the last look.
func (p *Pace) Again() { p.delay = firstLook }

// Longer doubles the next rest, up to a limit that depends on the phase and on how long the
// terminal has been quiet.
func (p *Pace) Longer(phase wire.Phase, quiet time.Duration, calm bool) {
	longest := min(max(quiet/silentPart, lastLook), silentLook)
	switch {
	case calm, phase == wire.PhasePrompt, phase == wire.PhaseContinuation,
		phase == wire.PhaseWaiting:
		longest = idleLook
	}
	p.delay = min(p.Rest()*2, longest)
}
