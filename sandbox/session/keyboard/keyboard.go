// Package keyboard decides who may type on a shared terminal, who sees it in private mode, and
// whose window determines its size.
//
// A [Keyboard] has at most one holder. Joining a session takes nothing. Typing and calls take a
// free keyboard. A person takes it from an agent at any time. The owner of the sandbox also takes
// it from a person who is not the owner. Any other party asks the holder, and receives the keyboard
// when it is given back. All parties of one agent hold it together; each person holds it alone.
//
// The package is pure: it has no lock, no timer, no clock and no I/O. The caller passes the time,
// and it carries out and reports the [Change] that a method returns. The package does not know
// about terminals, streams or logs.
package keyboard

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	// IdleHold is how long a prompt must be idle before a keyboard that typing took becomes free.
	IdleHold = 5 * time.Second
	// TypingPause is how long a person must pause after rejected input, before typing takes a free
	// keyboard again.
	TypingPause = time.Second
)

// Party is one attachment to the session. It is identified by its address.
type Party struct {
	wire.Party
	Key  string // parties with the same key hold the keyboard together
	Size Size   // size of its window, zero if it has given none
	Away bool   // it is disconnected: it does not receive a keyboard that is given back

	refused time.Time // when its input was last rejected
}

// NewParty returns a Party for p. id must differ from that of every other party.
func NewParty(p wire.Party, id string) Party {
	key := string(p.Kind) + ":" + p.Name
	if p.Kind == wire.Person || p.Rights == wire.RightWatch {
		key += ":" + id
	}
	return Party{Party: p, Key: key}
}

// Refused records that input of p was rejected at the time now.
func (p *Party) Refused(now time.Time) { p.refused = now }

// WatchOnly returns the error for a party that may not drive.
func WatchOnly(p *Party) *wire.Error {
	return &wire.Error{Code: wire.CodeDenied, Message: p.String() + " may only watch",
		Hint: "ask for the right to drive"}
}

// reason is why a party holds the keyboard, weakest first. It determines how long.
type reason int

const (
	free  reason = iota
	call         // a run, type or keys: until the next prompt
	typed        // input: until the prompt has been idle for IdleHold
	taken        // take: until it is given back
)

// Keyboard is the right to type, and its holder. The zero value is a free keyboard.
type Keyboard struct {
	why   reason
	who   wire.Party
	key   string
	typed time.Time // when the holder last typed
	asker *Party    // receives the keyboard next; nil if no party asks

	private *Party // the person in private mode; nil if there is none
	ending  bool   // private mode is over for its person, but not for the others yet

	before Size // size of the terminal before a person drove; zero unless one does
}

// Change is the effect of an operation. The caller carries it out in the order of the fields. The
// zero value is no change.
type Change struct {
	// PrivateOver: private mode starts to end. The caller erases the screen, then calls Reveal.
	PrivateOver bool
	Freed       bool   // the former holder gave up the keyboard, and no party took it away
	By          string // the former holder; empty if the keyboard was free
	To          *Party // the new holder; nil if there is none
	Asked       bool   // the caller reports Asker
	TakenFrom   string // key of the holder whom To took it from; empty if To did not take it
}

// String returns the holder as people see it, or "" if the keyboard is free.
func (k *Keyboard) String() string {
	if k.why == free {
		return ""
	}
	return k.who.String()
}

// Free reports whether no party holds the keyboard.
func (k *Keyboard) Free() bool { return k.why == free }

// Holds reports whether p holds the keyboard.
func (k *Keyboard) Holds(p *Party) bool { return k.why != free && k.key == p.Key }

// HeldByPerson reports whether a person holds the keyboard.
func (k *Keyboard) HeldByPerson() bool { return k.why != free && k.who.Kind == wire.Person }

// Asker returns the party that asks for the keyboard, or nil.
func (k *Keyboard) Asker() *Party { return k.asker }

// Refusal returns the error for a party that does not hold the keyboard.
func (k *Keyboard) Refusal() *wire.Error {
	e := wire.Errorf(wire.CodeKeyboardHeld, "%s holds the keyboard", k)
	e.Hint = "wait until it is given back, or ask for it"
	if k.who.Kind == wire.Agent {
		e.Hint = "a person can take it"
	}
	return e
}

// Type takes the keyboard for input of p, if it is free or p's. p holds it until the prompt has
// been idle for IdleHold. If the start of a line was rejected, Type rejects the rest too, even if
// the keyboard has become free: the rest of a command is another command.
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

// Call takes the keyboard for a call of p, if it is free or p's. p holds it until the next prompt.
func (k *Keyboard) Call(p *Party, now time.Time) (Change, *wire.Error) {
	return k.acquire(p, call, now)
}

// Take takes the keyboard for p, if it is free, p's, or held by a party from which p may take it. p
// holds it until p gives it back.
func (k *Keyboard) Take(p *Party, now time.Time) (Change, *wire.Error) {
	return k.acquire(p, taken, now)
}

// acquire gives p the keyboard. If p holds it for a stronger reason, that stays.
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
	c.Asked = k.asker != nil // the caller reports Asker to the new holder
	return c, nil
}

// yields reports whether p may take the keyboard from its holder without asking.
func (k *Keyboard) yields(p *Party) bool {
	return p.Kind == wire.Person && (k.who.Kind == wire.Agent || p.Owner && !k.who.Owner)
}

// Ask asks the holder for the keyboard, for p, whose request was rejected. Only one party may ask
// at a time.
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

// Keep rejects the party that asks for the keyboard, if p holds it.
func (k *Keyboard) Keep(p *Party) Change {
	if !k.Holds(p) {
		return Change{}
	}
	return k.unask()
}

// unask removes the party that asks.
func (k *Keyboard) unask() Change {
	asked := k.asker != nil
	k.asker = nil
	return Change{Asked: asked}
}

// Give frees the keyboard if p holds it. If p asks for it, p stops asking.
func (k *Keyboard) Give(p *Party) Change {
	switch {
	case k.Holds(p):
		return k.release()
	case k.asker == p:
		return k.unask()
	}
	return Change{}
}

// Leave frees the keyboard if p, who leaves, holds it. The caller calls Withdraw before, and calls
// Leave only for the last party with p's key.
func (k *Keyboard) Leave(p *Party) Change {
	if !k.Holds(p) {
		return Change{}
	}
	return k.release()
}

// Withdraw makes p stop asking.
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

// Rest frees a keyboard that is held for a call, because the shell is at its prompt or has ended.
func (k *Keyboard) Rest() Change {
	if k.why != call {
		return Change{}
	}
	return k.release()
}

// Idle returns how much longer a keyboard that typing took is held, at a prompt that exists since
// the given time. At 0 or less, FreeIdle would free it. ok is false if typing did not take the
// keyboard.
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

// release frees the keyboard. A party that asks for it then holds it until it gives it back.
func (k *Keyboard) release() Change {
	c := Change{PrivateOver: k.endPrivate(), Freed: true, By: k.String()}
	next := k.asker
	k.why, k.who, k.key, k.asker = free, wire.Party{}, "", nil
	if next != nil && !next.Away {
		// The keyboard is free, and watchers cannot ask.
		got, _ := k.acquire(next, taken, time.Time{})
		c.To = got.To
	}
	return c
}
