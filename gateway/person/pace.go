package person

import "time"

// The repaints of a person's terminal: a few at once, so that an echo does not wait for the last one's turn, and in no second more than
// thirty.
const (
	paintTime  = time.Second / 26 // for each, on the average
	paintBurst = 4                // that may come at once
	lookTime   = paintTime / 16   // for finding that there is nothing to paint, which happens before and after each echo
)

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
