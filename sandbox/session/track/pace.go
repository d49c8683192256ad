package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// The schedule of looks: soon after output, since a question is usually followed by waiting, then
// less and less often.
const (
	firstLook = 300 * time.Microsecond // after output
	// calmLook is firstLook where nobody waits for a call: those want to know within a second, at
	// next to no cost.
	calmLook = 20 * time.Millisecond
	lastLook = 64 * time.Millisecond // up to here each rest is twice the one before
	// After long silence a rest is this part of it, up to silentLook: a program that asks without
	// output is reported that much later.
	silentPart = 16
	silentLook = 250 * time.Millisecond
	// idleLook is the longest rest when the terminal needs input to go on: then only what could not
	// be foreseen changes anything.
	idleLook = time.Second
	// fewOutputs is how many outputs in a row are no flood yet: a program prints a few times before
	// it asks.
	fewOutputs = 4
	mostFlood  = 6 // longest rest in a flood, in firstLooks

	// sleepBelief is for how long it is believed that who sleeps does what he did, readBelief the
	// same for a reader that two readings agreed on.
	sleepBelief = idleLook
	readBelief  = 16 * time.Second
)

// Belief is for how long what a look saw may stand for the next look, while nobody has run since.
func (f Facts) Belief() time.Duration {
	if f.Blocked {
		return readBelief
	}
	return sleepBelief
}

// Pace says how long to rest before the next look. The zero value is ready.
type Pace struct {
	delay   time.Duration
	outputs int // in a row that ended a rest
}

// Rest returns how long to rest.
func (p *Pace) Rest() time.Duration { return max(p.delay, firstLook) }

// Long reports whether the rest is a long one: input that is not echoed, and a caller who has just
// come, end it.
func (p *Pace) Long() bool { return p.delay > lastLook }

// Fresh reports whether something has happened a short while ago: what the last look saw does not
// count.
func (p *Pace) Fresh() bool { return p.delay < lastLook }

// Rested notes that a rest was whole.
func (p *Pace) Rested() { p.outputs = 0 }

// Anew begins the schedule anew. calm says that nobody waits for a call.
func (p *Pace) Anew(calm bool) {
	p.delay = firstLook
	if calm {
		p.delay = calmLook
	}
}

// Output begins the schedule anew after output, and returns how long to rest before the look after
// it: in a flood, looks come less often than output.
func (p *Pace) Output(calm bool) time.Duration {
	p.outputs = min(p.outputs+1, fewOutputs+mostFlood)
	p.Anew(calm)
	return max(p.delay, time.Duration(p.outputs-fewOutputs)*firstLook)
}

// Again makes the next rest the shortest: the last look needs to be confirmed.
func (p *Pace) Again() { p.delay = firstLook }

// Longer makes the next rest twice as long as the last, as far as the phase and how long the
// terminal has been quiet allow.
func (p *Pace) Longer(phase wire.Phase, quiet time.Duration, calm bool) {
	longest := min(max(quiet/silentPart, lastLook), silentLook)
	switch {
	case calm, phase == wire.PhasePrompt, phase == wire.PhaseContinuation,
		phase == wire.PhaseWaiting:
		longest = idleLook
	}
	p.delay = min(p.Rest()*2, longest)
}
