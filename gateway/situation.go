package gateway

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Situation is how a session stands at one moment, for who tells it to a person. Parties are named as by Party.String.
type Situation struct {
	Keyboard string // the holder, or empty
	Asking   string // who asks for the keyboard, or empty
	Private  string // who has a private stretch, or empty
	Typed    string // who typed last, or empty
	State    wire.State
	Denied   string // the newest connection of what runs that the network's policy refused, or empty
	Denials  uint64 // how many there have been

	Idle   time.Duration // the sandbox stops so long after everybody has left, for nothing runs in it; 0 when it does not
	Others int           // attached parties beside one and the holder of the keyboard
}

// Situation is how the session stands for self, one of its parties.
func (l *Live) Situation(self wire.Party) Situation {
	var idle time.Duration
	if ttl := l.box.get().life.TTL; ttl > 0 && l.box.working() == "" {
		idle = ttl
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Situation{Idle: idle, Keyboard: l.keyboard, Asking: l.asking, Private: l.private, Typed: l.typed, State: l.state, Denied: l.denials.shown, Denials: l.denials.told}
	for _, m := range l.members {
		if m.party.ID != self.ID && m.party.String() != l.keyboard && !l.restsLocked(m) {
			s.Others++
		}
	}
	return s
}
