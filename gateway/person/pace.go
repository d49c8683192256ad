package person

import "time"

// The rate of repaints of a person's terminal. A few may follow immediately, so that an echo need
// not wait for its turn; at most thirty a second, and one for each pressed key.
const (
	paintTime  = time.Second / 26 // average for each
	paintBurst = 4                // how many may follow immediately
	// For a check that finds nothing to paint, which occurs before and after each echo.
	lookTime = paintTime / 16
)

// echoTime is the cost of a key's echo: a repaint, and the checks before and after it.
const echoTime = paintTime + 2*lookTime

// pace limits actions by their cost in time. The zero value has no past action.
type pace struct {
	due time.Time // when all past actions are paid for
}

// wait returns how long from now the next action has to wait.
func (p *pace) wait(now time.Time) time.Duration {
	return max(p.due.Add(-(paintBurst-1)*paintTime).Sub(now), 0)
}

// spend counts an action at time now with a cost.
func (p *pace) spend(now time.Time, cost time.Duration) {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(cost)
}

// earn returns the cost of a key's echo. The next spend drops what exceeds a burst.
func (p *pace) earn() { p.due = p.due.Add(-echoTime) }
