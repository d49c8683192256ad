package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	firstRetry = 50 * time.Millisecond // pauses between tries to open a party's stream
	maxRetry   = time.Second

	// maxRepeats is how often a call is repeated to the guest that has it: a guest that ends each
	// connection gets it no more.
	maxRepeats = 20
)

// stream returns the party's stream. Where there is none that lives, open opens one.
func (a *Attachment) stream(ctx context.Context,
	open func(context.Context) (*wire.Client, error)) (*wire.Client, error) {
	select {
	case a.opening <- struct{}{}:
		defer func() { <-a.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	a.mu.Lock()
	client := a.client
	a.mu.Unlock()
	if err := a.Err(); err != nil {
		return nil, err
	}
	if client != nil && client.Err() == nil {
		return client, nil
	}
	ctx, done := a.all.options.Bound(ctx)
	defer done()
	client, err := open(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return client, err
}

// anew opens the party's stream, first or again, in a sandbox that is started for it if need be.
// When a connection breaks, the next one may, too: it is tried again for as long as the guest
// remembers the party, unless something is known to be wrong.
func (a *Attachment) anew(ctx context.Context) (*wire.Client, error) {
	ctx, done := a.sandbox.Stops().Within(ctx)
	defer done()
	return a.openOn(ctx, func(ctx context.Context) (*connect.Control, error) {
		return a.sandbox.Control(ctx, a.party, a.target.Session, a.options.Create ||
			a.options.Fresh, nil)
	}, a.options.Create && !a.options.Fresh)
}

// openOn opens the party's stream, first or again, on the connection that control returns. create
// starts a session that is missing.
func (a *Attachment) openOn(ctx context.Context,
	control func(context.Context) (*connect.Control, error), create bool) (*wire.Client, error) {
	if a.away.IsZero() {
		a.away = time.Now()
	}
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		client, err := a.reopen(ctx, control, create)
		a.mu.Lock()
		isNew := a.resumes == "" // the guest has not known the party yet
		a.mu.Unlock()
		switch {
		case err == nil:
			a.away = time.Time{}
			return client, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !isPassing(err) || time.Since(a.away) > rememberedFor:
			return nil, err
		case isNew && errors.As(err, new(*interrupt.SilentError)):
			return nil, err // it has nothing to lose, and has waited
		case !sleep(ctx, pause):
			return nil, context.Cause(ctx)
		}
	}
}

// reopen opens the stream: as the party that it was or, when the guest no longer knows that, as
// another one, which holds nothing.
func (a *Attachment) reopen(ctx context.Context,
	control func(context.Context) (*connect.Control, error), create bool) (*wire.Client, error) {
	if err := a.Err(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	secret, cols, rows := a.resumes, a.cols, a.rows
	a.mu.Unlock()
	c, err := control(ctx)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		client, err := a.open(ctx, c, wire.Attach{Session: a.target.Session, Resume: secret})
		if err == nil {
			return client, nil
		}
		if !errors.Is(err, &wire.Error{Code: wire.CodeNotFound}) {
			return nil, err // the secret is good still
		}
		a.mu.Lock()
		a.resumes, a.holds = "", false
		a.mu.Unlock()
	}
	client, err := a.open(ctx, c, wire.Attach{Session: a.target.Session, Create: create})
	if err != nil {
		return nil, err
	}
	if cols > 0 && rows > 0 && a.party.Kind == wire.Person {
		// The size that the session gets when this party drives.
		if _, err := client.Request(ctx, wire.Request{Verb: wire.VerbResize, Cols: cols,
			Rows: rows}); err != nil && client.Err() != nil {
			return nil, a.sandbox.Reach(client.Err())
		}
	}
	return client, nil
}

// Resume opens the stream again on a new control connection, so that the party keeps what it holds.
// It starts no sandbox: nobody has called.
func (a *Attachment) Resume(ctx context.Context, c *connect.Control) {
	a.mu.Lock()
	had := a.client != nil && a.Err() == nil
	a.mu.Unlock()
	if !had {
		return
	}
	open := func(ctx context.Context) (*wire.Client, error) {
		return a.openOn(ctx, func(context.Context) (*connect.Control, error) { return c, nil },
			a.options.Create && !a.options.Fresh)
	}
	if _, err := a.stream(ctx, open); err != nil && ctx.Err() == nil {
		a.all.options.Log.Debug("party not attached again", "sandbox", a.sandbox.Name(), "session",
			a.target.Session, "party", a.party.String(), "err", err)
	}
}

// within returns ctx, which also ends when the attachment does.
func (a *Attachment) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.life, func() { cancel(a.Err()) })
	return ctx, func() { stop(); cancel(nil) }
}

// resume opens the stream as the party that it was, and as no other. It starts nothing.
func (a *Attachment) resume(ctx context.Context) (*wire.Client, error) {
	c, err := a.sandbox.Again(ctx)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	secret := a.resumes
	a.mu.Unlock()
	return a.open(ctx, c, wire.Attach{Session: a.target.Session, Resume: secret})
}

// there is anew in a sandbox that runs and a session that exists: it starts nothing. Nothing was
// sent yet, so that the loss of what runs in the sandbox refuses the request.
func (a *Attachment) there(ctx context.Context) (*wire.Client, error) {
	client, err := a.openOn(ctx, a.sandbox.Again, false)
	if lost, ok := errors.AsType[*wire.Error](err); ok && lost.Code == wire.CodeLost &&
		lost.Reason != "" {
		return nil, notTyped(lost)
	}
	return client, err
}

// notTyped refuses what is for a program of a sandbox that has ended.
func notTyped(why *wire.Error) *wire.Error {
	return &wire.Error{Code: wire.CodeUnavailable, Message: why.Message,
		Hint: "nothing was typed; run starts it again"}
}

// shellIs notes the incarnation of the shell that has answered a call; empty is not known.
func (a exchange) shellIs(incarnation string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if incarnation != "" {
		a.incarnation = live.Cut(incarnation, live.MaxWord)
	}
}

// shell is the incarnation of the shell that the party knows; empty before it first drives.
func (a exchange) shell() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.incarnation
}

// sent is what was given to a guest: it is given to no other.
type sent struct {
	party   string // the secret of the party that it was sent for
	repeats int
}

// resumed returns a stream of the party for which s was sent, after the one before broke. An error
// is the loss of s, or ctx's cause.
func (a *Attachment) resumed(ctx context.Context, s *sent) (*wire.Client, error) {
	within, cancel := context.WithTimeout(ctx, a.sandbox.Patience())
	defer cancel()
	if s.repeats++; s.repeats > maxRepeats {
		return nil, wire.LostError(wire.LostGuest,
			fmt.Sprintf("the guest of sandbox %s ends each connection with the call",
				a.sandbox.Name()))
	}
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		client, err := a.stream(within, a.resume)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		lost, _ := errors.AsType[*wire.Error](err)
		switch {
		case err == nil && client.Attached().Resume == s.party:
			return client, nil
		case err == nil, lost != nil && lost.Code == wire.CodeNotFound:
			if over := a.sandbox.Over(); over != nil {
				return nil, over
			}
			return nil, wire.LostError(wire.LostGuest,
				fmt.Sprintf("the guest of sandbox %s that had the call has ended",
					a.sandbox.Name()))
		case lost != nil && lost.Reason != "":
			return nil, lost
		case !sleep(within, pause):
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, a.sandbox.Unreachable(err)
		}
	}
}

// isPassing reports whether err is no more than a connection to a sandbox that broke or could not
// be made just now.
func isPassing(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Passing() bool
	}](err)
	return ok && e.Passing()
}
