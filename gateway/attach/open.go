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
	firstRetry = 50 * time.Millisecond // pause before another attempt to open a party's stream
	maxRetry   = time.Second

	// maxRepeats limits how often a call is repeated to its guest. It stops a guest that ends each
	// connection on getting the call.
	maxRepeats = 20
)

// stream returns the party's stream. If none is open, it calls open.
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

// anew opens or reopens the party's stream. It starts the sandbox if necessary. After a connection
// broke, the next one may break too. So anew retries while the guest remembers the party, unless
// the error is permanent.
func (a *Attachment) anew(ctx context.Context) (*wire.Client, error) {
	ctx, done := a.sandbox.Stops().Within(ctx)
	defer done()
	return a.openOn(ctx, func(ctx context.Context) (*connect.Control, error) {
		return a.sandbox.Control(ctx, a.party, a.target.Session, a.options.Create ||
			a.options.Fresh, nil)
	}, a.options.Create && !a.options.Fresh)
}

// openOn opens or reopens the party's stream on the connection that control returns. create starts
// a missing session.
func (a *Attachment) openOn(ctx context.Context,
	control func(context.Context) (*connect.Control, error), create bool) (*wire.Client, error) {
	if a.away.IsZero() {
		a.away = time.Now()
	}
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		client, err := a.reopen(ctx, control, create)
		a.mu.Lock()
		isNew := a.resumes == "" // the guest does not know the party yet
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
			return nil, err // it has nothing to lose, and has waited already
		case !sleep(ctx, pause):
			return nil, context.Cause(ctx)
		}
	}
}

// reopen opens the stream as the same party. If the guest no longer knows that party, it opens the
// stream as a new one, which holds nothing.
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
			return nil, err // the secret is still valid
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
		// The size that the session has while this party drives.
		if _, err := client.Request(ctx, wire.Request{Verb: wire.VerbResize, Cols: cols,
			Rows: rows}); err != nil && client.Err() != nil {
			return nil, a.sandbox.Reach(client.Err())
		}
	}
	return client, nil
}

// Resume reopens the stream on a new control connection, so that the party keeps what it holds. It
// starts no sandbox, because there is no call.
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

// within returns a context that ends with ctx or with the attachment.
func (a *Attachment) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.life, func() { cancel(a.Err()) })
	return ctx, func() { stop(); cancel(nil) }
}

// resume opens the stream only as the same party. It starts nothing.
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

// there is anew for a running sandbox and an existing session: it starts nothing. Nothing was sent
// yet, so a loss becomes a rejection of the request.
func (a *Attachment) there(ctx context.Context) (*wire.Client, error) {
	client, err := a.openOn(ctx, a.sandbox.Again, false)
	if lost, ok := errors.AsType[*wire.Error](err); ok && lost.Code == wire.CodeLost &&
		lost.Reason != "" {
		return nil, notTyped(lost)
	}
	return client, err
}

// notTyped rejects input for a program in a sandbox that has ended.
func notTyped(why *wire.Error) *wire.Error {
	return &wire.Error{Code: wire.CodeUnavailable, Message: why.Message,
		Hint: "nothing was typed; run starts it again"}
}

// shellIs records the incarnation of the shell that answered a call. Empty means not known.
func (a exchange) shellIs(incarnation string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if incarnation != "" {
		a.incarnation = live.Cut(incarnation, live.MaxWord)
	}
}

// shell returns the incarnation of the shell that the party knows, or "" before it first drives.
func (a exchange) shell() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.incarnation
}

// sent describes a call that was sent to a guest. It must not be sent to another guest.
type sent struct {
	party   string // resume secret of the party that it was sent for
	repeats int
}

// resumed returns a new stream of the party for which s was sent, after the last one broke. An
// error is the loss of s, or ctx's cause.
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

// isPassing reports whether err only means that a connection to a sandbox broke, or could not be
// made at the moment.
func isPassing(err error) bool {
	e, ok := errors.AsType[interface {
		error
		Passing() bool
	}](err)
	return ok && e.Passing()
}
