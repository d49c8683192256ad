package person

import (
	"slices"
	"time"
)

// Alert is how a person's terminal gets their attention when a session begins to ask.
type Alert string

// The kinds of alerts. The empty string is the same as NoAlert.
const (
	NoAlert Alert = "none"
	Bell    Alert = "bell"    // BEL
	Desktop Alert = "desktop" // BEL, and a notification of the desktop by OSC 9, as of iTerm2
)

// alertTime is the shortest time between alerts: others decide how often their sessions ask.
const alertTime = 10 * time.Second

// alert returns what to send to the terminal if sessions have begun to ask. A question in the
// session that they type in is none.
func (p *Person) alert(now situation) (out []byte) {
	if p.o.Began == nil || p.o.Alert != Bell && p.o.Alert != Desktop {
		return nil
	}
	if time.Since(p.rung) < alertTime {
		return nil
	}
	began := p.o.Began()
	if i := slices.Index(began, p.at.Target()); i >= 0 && now.holds {
		began = slices.Delete(began, i, i+1)
	}
	if len(began) > 0 {
		p.rung = time.Now()
		time.AfterFunc(alertTime, p.changed) // for those that begin meanwhile
	}
	for _, t := range began {
		if len(out) == 0 {
			out = append(out, '\a')
		}
		if p.o.Alert == Desktop {
			out = append(out, "\x1b]9;"+plain(Full(t))+" asks for an answer\x1b\\"...)
		}
	}
	return out
}
