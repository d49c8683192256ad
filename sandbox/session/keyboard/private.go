package keyboard

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Private mode: the screen is for the person who drives alone. It ends with that person's hold on
// the keyboard. Until the caller has erased its traces it goes on, for nobody.

// NoPrivacy is the error for a party that cannot make the session private; nil for a person.
func NoPrivacy(p *Party) *wire.Error {
	if p.Kind == wire.Person {
		return nil
	}
	return &wire.Error{Code: wire.CodeDenied, Message: "only a person makes a session private"}
}

// TakePrivate takes the keyboard for p, who is about to make the session private, until p gives it
// back. Unlike Take it takes it from nobody.
func (k *Keyboard) TakePrivate(p *Party, now time.Time) (Change, *wire.Error) {
	if refused := NoPrivacy(p); refused != nil {
		return Change{}, refused
	}
	if k.why != free && !k.Holds(p) {
		return Change{}, k.Refusal()
	}
	return k.acquire(p, taken, now)
}

// MakePrivate begins private mode for p, who called TakePrivate before. It reports whether p had
// none; it is an error if p no longer holds the keyboard, or if the private mode of another is
// ending.
func (k *Keyboard) MakePrivate(p *Party) (began bool, refused *wire.Error) {
	switch {
	case k.private == p:
		return false, nil
	case k.private != nil || !k.Holds(p) || NoPrivacy(p) != nil:
		return false, k.Refusal()
	}
	k.private = p
	return true, nil
}

// EndPrivate begins to end private mode, if it is p's. A nil p is everybody's.
func (k *Keyboard) EndPrivate(p *Party) Change {
	if p != nil && k.private != p {
		return Change{}
	}
	return Change{PrivateOver: k.endPrivate()}
}

// endPrivate reports whether private mode begins to end.
func (k *Keyboard) endPrivate() bool {
	if k.private == nil || k.ending {
		return false
	}
	k.ending = true
	return true
}

// Reveal ends private mode: its traces are gone. It reports whether it was on.
func (k *Keyboard) Reveal() bool {
	was := k.private != nil
	k.private, k.ending = nil, false
	return was
}

// Private returns who keeps the screen private; nil when nobody does.
func (k *Keyboard) Private() *Party { return k.private }

// PrivateEnding reports whether private mode is ending: nobody sees the screen.
func (k *Keyboard) PrivateEnding() bool { return k.ending }

// Sees reports whether p may see what the terminal shows.
func (k *Keyboard) Sees(p *Party) bool {
	return k.private == nil || !k.ending && k.private == p
}
