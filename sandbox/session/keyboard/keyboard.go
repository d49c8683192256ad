// Package keyboard decides who may type on a shared terminal, who sees it in private mode, and
// whose window gives it its size.
//
// A [Keyboard] has at most one holder. Joining a session takes nothing. Typing and calls take a
// free keyboard. A person takes it from an agent at any time, and the owner of the sandbox takes it
// from a person who is not the owner. Everybody else asks the holder, and has it next when it is
// given back. All parties of one agent hold it together; each person holds it alone.
//
// The package is pure: it has no lock, no timer, no clock and no I/O. The caller passes the time,
// and carries out and reports the [Change] that a method returns. It knows nothing of terminals,
// streams or logs.
package keyboard

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// IdleHold is how long a prompt must be idle before a keyboard that typing took is free again.
	IdleHold = 5 * time.Second
	// TypingPause is how long a person whose input was refused must type nothing before typing
	// takes a free keyboard again.
	TypingPause = time.Second
)

// Party is one attachment to the session. A party is known by its address.
type Party struct {
	wire.Party
	Key  string // parties with the same key hold the keyboard together
	Size Size   // of its window; zero when it gave none
	Away bool   // it is cut off: a keyboard that is given back does not go to it

	refused time.Time // when its input was refused last
}

// NewParty returns the party p, which id tells apart from all others.
func NewParty(p wire.Party, id string) Party {
	key := string(p.Kind) + ":" + p.Name
	if p.Kind == wire.Person || p.Rights == wire.RightWatch {
		key += ":" + id
	}
	return Party{Party: p, Key: key}
}

// Refused notes that input of p was refused at the time now.
func (p *Party) Refused(now time.Time) { p.refused = now }

// WatchOnly is the error for a party that may not drive.
func WatchOnly(p *Party) *wire.Error {
	return &wire.Error{Code: wire.CodeDenied, Message: p.String() + " may only watch",
		Hint: "ask for the right to drive"}
}

// reason is why a party holds the keyboard, weakest first.
type reason int

const (
	free  reason = iota
	call         // a run, type or keys: until the next prompt
	typed        // input: until the prompt has been idle for IdleHold
	taken        // take: until it is given back
)

// Keyboard is who may type. The zero value is a free keyboard.
type Keyboard struct {
	why   reason
	who   wire.Party
	key   string
	typed time.Time // when the holder typed last
	asker *Party    // has the keyboard next; nil when nobody asks

	private *Party // keeps the screen private; nil when nobody does
	ending  bool   // private mode is over for its person, and not yet for the others

	before Size // of the terminal before a person drove; zero unless one does
}

// Change is what an operation did, for the caller to carry out in the order of the fields. The zero
// value is no change.
type Change struct {
	PrivateOver bool   // private mode began to end: the caller erases the screen, then calls Reveal
	Freed       bool   // the former holder no longer has the keyboard, and nobody took it away
	By          string // the former holder; empty if the keyboard was free
	To          *Party // the new holder; nil if there is none
	Asked       bool   // who asks is to be reported: see Asker
	TakenFrom   string // key of the holder whom To took it from; empty unless that happened
}

// String returns the holder as people see it; empty when the keyboard is free.
func (k *Keyboard) String() string {
	if k.why == free {
		return ""
	}
	return k.who.String()
}

// Free reports whether nobody holds the keyboard.
func (k *Keyboard) Free() bool { return k.why == free }

// Holds reports whether p holds the keyboard.
func (k *Keyboard) Holds(p *Party) bool { return k.why != free && k.key == p.Key }

// HeldByPerson reports whether a person holds the keyboard.
func (k *Keyboard) HeldByPerson() bool { return k.why != free && k.who.Kind == wire.Person }

// Asker returns who asks for the keyboard; nil when nobody does.
func (k *Keyboard) Asker() *Party { return k.asker }

// Refusal is the error for a party that does not hold the keyboard.
func (k *Keyboard) Refusal() *wire.Error {
	e := wire.Errorf(wire.CodeKeyboardHeld, "%s holds the keyboard", k)
	e.Hint = "wait until it is given back, or ask for it"
	if k.who.Kind == wire.Agent {
		e.Hint = "a person can take it"
	}
	return e
}

// Type takes the keyboard for input of p, if it is free or p's. It holds until the prompt has been
// idle for IdleHold. The rest of a line whose beginning was refused is refused too, although the
// keyboard may have come free in the middle of it: the tail of a command is another command.
func (k *Keyboard) Type(p *Party, now time.Time) (Change, *wire.Error) {
	var c Change
	var refused *wire.Error
	paused := now.Sub(p.refused) >= TypingPause
	if k.why == free && p.Kind == wire.Person && p.Rights != wire.RightWatch && !paused {
		refused = &wire.Error{Code: wire.CodeKeyboardHeld,
			Message: "not typed: the keys before were refused; pause a second",
			Hint:    "then type it again from its beginning, or take the keyboard"}
	} else {
		c, refused = k.acquire(p, typed, now)
	}
	if refused != nil {
		p.refused = now
	}
	return c, refused
}

// Call takes the keyboard for a call of p, if it is free or p's. It holds until the next prompt.
func (k *Keyboard) Call(p *Party, now time.Time) (Change, *wire.Error) {
	return k.acquire(p, call, now)
}

// Take takes the keyboard for p, if it is free, p's, or held by a party from which p may take it.
// It holds until p gives it back.
func (k *Keyboard) Take(p *Party, now time.Time) (Change, *wire.Error) {
	return k.acquire(p, taken, now)
}

// acquire gives p the keyboard. A reason weaker than the one for which p holds it changes nothing.
func (k *Keyboard) acquire(p *Party, why reason, now time.Time) (Change, *wire.Error) {
	switch {
	case p.Rights == wire.RightWatch:
		return Change{}, WatchOnly(p)
	case k.Holds(p):
		k.why = max(k.why, why)
		if why == typed {
			k.typed = now
		}
		return Change{}, nil
	case k.why != free && !(why == taken && k.yields(p)):
		return Change{}, k.Refusal()
	}
	c := Change{PrivateOver: k.endPrivate(), By: k.String(), To: p}
	if k.why != free {
		c.TakenFrom = k.key
	}
	k.why, k.who, k.key, k.typed = why, p.Party, p.Key, now
	if k.asker == p || p.Kind != wire.Person {
		k.asker = nil
	}
	c.Asked = k.asker != nil // of the new holder
	return c, nil
}

// yields reports whether p may take the keyboard from its holder without asking.
func (k *Keyboard) yields(p *Party) bool {
	return p.Kind == wire.Person && (k.who.Kind == wire.Agent || p.Owner && !k.who.Owner)
}

// Ask asks the holder for the keyboard on behalf of p, who was refused it. One party asks at a
// time.
func (k *Keyboard) Ask(p *Party) (Change, *wire.Error) {
	switch {
	case k.asker == p:
		return Change{}, nil
	case k.asker != nil:
		e := wire.Errorf(wire.CodeKeyboardHeld, "%s holds the keyboard, and %s has asked for it",
			k, k.asker)
		e.Hint = "ask again later"
		return Change{}, e
	}
	k.asker = p
	return Change{Asked: true}, nil
}

// Keep refuses who asks for the keyboard, if p holds it.
func (k *Keyboard) Keep(p *Party) Change {
	if !k.Holds(p) {
		return Change{}
	}
	return k.unask()
}

// unask ends the asking.
func (k *Keyboard) unask() Change {
	asked := k.asker != nil
	k.asker = nil
	return Change{Asked: asked}
}

// Give frees the keyboard if p holds it; if p asks for it, p no longer does.
func (k *Keyboard) Give(p *Party) Change {
	switch {
	case k.Holds(p):
		return k.release()
	case k.asker == p:
		return k.unask()
	}
	return Change{}
}

// Leave frees the keyboard of p, who leaves, if p holds it. The caller makes sure that no other
// party with p's key stays, and calls Withdraw before.
func (k *Keyboard) Leave(p *Party) Change {
	if !k.Holds(p) {
		return Change{}
	}
	return k.release()
}

// Withdraw ends the asking of p.
func (k *Keyboard) Withdraw(p *Party) Change {
	if k.asker != p {
		return Change{}
	}
	return k.unask()
}

// EndCall frees the keyboard if p holds it for a call.
func (k *Keyboard) EndCall(p *Party) Change {
	if k.why != call || !k.Holds(p) {
		return Change{}
	}
	return k.release()
}

// Rest frees a keyboard that is held for a call: the shell is at its prompt, or has ended.
func (k *Keyboard) Rest() Change {
	if k.why != call {
		return Change{}
	}
	return k.release()
}

// Idle returns how long a keyboard that typing took is still held at a prompt that has been there
// since the time given: 0 or less if FreeIdle would free it. ok is false if typing did not take it.
func (k *Keyboard) Idle(since, now time.Time) (left time.Duration, ok bool) {
	if k.why != typed {
		return 0, false
	}
	if k.typed.After(since) {
		since = k.typed
	}
	return since.Add(IdleHold).Sub(now), true
}

// FreeIdle frees a keyboard that typing took, if the prompt has been idle for IdleHold.
func (k *Keyboard) FreeIdle(since, now time.Time) Change {
	if left, ok := k.Idle(since, now); !ok || left > 0 {
		return Change{}
	}
	return k.release()
}

// release takes the keyboard from its holder. Who asks for it has it next, until it is given back.
func (k *Keyboard) release() Change {
	c := Change{PrivateOver: k.endPrivate(), Freed: true, By: k.String()}
	next := k.asker
	k.why, k.who, k.key, k.asker = free, wire.Party{}, "", nil
	if next != nil && !next.Away {
		got, _ := k.acquire(next, taken, time.Time{}) // it is free, and watchers cannot ask
		c.To = got.To
	}
	return c
}
