package person

import "time"

// The repaints of a person's terminal: a few at once, so that an echo does not wait for the last one's turn, and in no second more than
// thirty, and one for each key that they press.
const (
	paintTime  = time.Second / 26 // for each, on the average
	paintBurst = 4                // that may come at once
	lookTime   = paintTime / 16   // for finding that there is nothing to paint, which happens before and after each echo
)

// echoTime is what the echo of a key takes: a repaint, and the looks before and after it.
const echoTime = paintTime + 2*lookTime

// pace says when something may be done next that may take so much time and no more. The zero value has not done anything yet.
type pace struct {
	due time.Time // of the next one if each had come in its turn
}

// wait returns how long it is from now until the next one may be done.
func (p *pace) wait(now time.Time) time.Duration {
	return max(p.due.Add(-(paintBurst-1)*paintTime).Sub(now), 0)
}

// spend counts one that was done now and takes cost.
func (p *pace) spend(now time.Time, cost time.Duration) {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(cost)
}

// earn gives back what the echo of a key takes. What would be more than a burst is lost with the next spend.
func (p *pace) earn() { p.due = p.due.Add(-echoTime) }
