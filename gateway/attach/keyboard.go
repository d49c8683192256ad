package attach

import (
	"context"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Take takes the keyboard; an agent loses it immediately. If a person holds it, the error names
// that person.
func (a *Attachment) Take(ctx context.Context) error {
	_, err := a.take(ctx, false)
	return err
}

// Ask takes the keyboard. If the holder has to agree, Ask sends a request, and asked names the
// holder. The party gets the keyboard when the holder gives it back. A refusal ends the request;
// see Live.Asking.
func (a *Attachment) Ask(ctx context.Context) (asked string, err error) { return a.take(ctx, true) }

func (a *Attachment) take(ctx context.Context, ask bool) (asked string, err error) {
	if err := mayDrive(a.party); err != nil {
		return "", err
	}
	reply, err := a.Request(ctx, wire.Request{Verb: wire.VerbTake, Ask: ask})
	if err != nil {
		return "", err
	}
	if reply.Asked {
		return reply.Keyboard, nil
	}
	a.took()
	return "", nil
}

// Keep refuses the pending request for the keyboard. It does nothing if the party does not hold it.
func (a *Attachment) Keep(ctx context.Context) error {
	if err := mayDrive(a.party); err != nil {
		return err
	}
	_, err := a.Request(ctx, wire.Request{Verb: wire.VerbKeep})
	return err
}

// Give gives the keyboard back. It is not an error if the party does not hold it.
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

// took records that the party holds the keyboard, after an answer of a guest that does not report
// the holder by an event.
func (a *Attachment) took() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds = a.holds || !a.told
}

func mayDrive(party wire.Party) error {
	if party.Rights == wire.RightWatch {
		return &wire.Error{Code: wire.CodeDenied, Message: party.String() + " may only watch",
			Hint: "ask for the right to drive"}
	}
	return nil
}

// Private begins or ends private mode. In private mode, only this person sees the terminal's
// output, until the keyboard is given back. It needs the keyboard, or takes it if it is free.
func (a *Attachment) Private(ctx context.Context, on bool) error {
	if err := mayDrive(a.party); err != nil {
		return err
	}
	if _, err := a.Request(ctx, wire.Request{Verb: wire.VerbPrivate, On: on}); err != nil {
		return err
	}
	if on {
		a.took()
	}
	return nil
}

// Screen passes the session's screen to f. In private mode of this attachment, it is the screen
// that only this person sees.
func (a *Attachment) Screen(f func(s *screen.Screen, offset uint64)) error {
	return a.secret.Screen(a.live, f)
}

// Situation returns the state of the session for the party.
func (a *Attachment) Situation() live.Situation {
	s := a.live.Situation(a.party)
	s.Idle = a.sandbox.StopsAfter()
	return s
}
