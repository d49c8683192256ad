package keyboard

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// In private mode, only the person who drives sees the screen. Private mode starts to end when that
// person no longer holds the keyboard. Then no party sees the screen until the caller has erased
// it.

// NoPrivacy returns the error for a party that may not use private mode, or nil for a person.
func NoPrivacy(p *Party) *wire.Error {
	if p.Kind == wire.Person {
		return nil
	}
	return &wire.Error{Code: wire.CodeDenied, Message: "only a person makes a session private"}
}

// TakePrivate takes the keyboard for p, who is about to begin private mode, until p gives it back.
// Unlike Take, it does not take it from another party.
func (k *Keyboard) TakePrivate(p *Party, now time.Time) (Change, *wire.Error) {
	if refused := NoPrivacy(p); refused != nil {
		return Change{}, refused
	}
	if k.why != free && !k.Holds(p) {
		return Change{}, k.Refusal()
	}
	return k.acquire(p, taken, now)
}

// MakePrivate begins private mode for p, after TakePrivate. began is false if p was in private mode
// already. It is an error if p no longer holds the keyboard, or if the private mode of another
// party is ending.
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

// EndPrivate starts to end the private mode of p, or of any party if p is nil.
func (k *Keyboard) EndPrivate(p *Party) Change {
	if p != nil && k.private != p {
		return Change{}
	}
	return Change{PrivateOver: k.endPrivate()}
}

// endPrivate starts to end private mode, and reports whether it does.
func (k *Keyboard) endPrivate() bool {
	if k.private == nil || k.ending {
		return false
	}
	k.ending = true
	return true
}

// Reveal ends private mode, after the caller has erased its text. It reports whether private mode
// was on.
func (k *Keyboard) Reveal() bool {
	was := k.private != nil
	k.private, k.ending = nil, false
	return was
}

// Private returns the person in private mode, or nil.
func (k *Keyboard) Private() *Party { return k.private }

// PrivateEnding reports whether private mode is ending, so that no party sees the screen.
func (k *Keyboard) PrivateEnding() bool { return k.ending }

// Sees reports whether p may see the terminal.
func (k *Keyboard) Sees(p *Party) bool {
	return k.private == nil || !k.ending && k.private == p
}
