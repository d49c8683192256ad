package gateway

import (
	"context"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Take takes the keyboard, from an agent at once. Its error names a person who holds it.
func (a *Attachment) Take(ctx context.Context) error {
	if err := a.mayDrive(); err != nil {
		return err
	}
	if _, err := a.Request(ctx, wire.Request{Verb: wire.VerbTake}); err != nil {
		return err
	}
	a.took()
	return nil
}

// Give gives the keyboard back. Giving what one does not hold is not an error.
func (a *Attachment) Give(ctx context.Context) error {
	a.mu.Lock()
	never := a.client == nil
	a.mu.Unlock()
	if never {
		return nil
	}
	if _, err := a.Request(ctx, wire.Request{Verb: wire.VerbGive}); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds = false
	return nil
}

// Holds reports whether the attachment holds the keyboard.
func (a *Attachment) Holds() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds
}

// took notes that the party holds the keyboard.
func (a *Attachment) took() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds = true
}

func (a *Attachment) mayDrive() error {
	if a.party.Rights == wire.RightWatch {
		return &wire.Error{Code: wire.CodeDenied, Message: a.party.String() + " may only watch", Hint: "ask for the right to drive"}
	}
	return nil
}
