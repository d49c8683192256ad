package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Attachment is one party on a session. Its methods are safe for concurrent use.
//
// The guest does not know a person who only watches. The attachment opens the party's own stream to
// the guest when the party first drives. It reopens the stream for the same party after the
// connection to the sandbox, or the daemon's control connection, broke.
type Attachment struct {
	all     *Attachments
	sandbox Sandbox
	live    *live.Session
	target  wire.Target
	party   wire.Party
	options JoinOptions
	opening chan struct{} // semaphore for opening the stream
	// Guarded by opening; since when the stream is missing, zero while it is open.
	away time.Time

	life context.Context //nolint:containedctx // ends with the attachment; its cause says why
	end  context.CancelCauseFunc

	imu  sync.Mutex   // serialises Input
	last *wire.Client // guarded by imu; client of the last input
	sent uint64       // guarded by imu; bytes of input on last that the guest has handled

	calls atomic.Int32 // number of calls in progress

	secret live.PrivateView // its lock is taken before those of live and mu

	mu     sync.Mutex
	client *wire.Client // guarded by mu; nil before the party first drives
	// Guarded by mu; secret to resume as the same party; empty before the party first drives.
	resumes string
	// Guarded by mu; incarnation of the session's shell when client was opened.
	incarnation string
	cols        int    // guarded by mu
	rows        int    // guarded by mu
	holds       bool   // guarded by mu
	told        bool   // guarded by mu; the guest reports the keyboard's holder by ID
	seq         uint64 // guarded by mu; newest event on the party's stream
	// Guarded by mu; the last command for which the shell discarded the party's unsent input.
	undone wire.Event
	leave  func() // guarded by mu; removes the party from the copy's list
}

// Live returns the daemon's copy of the session.
func (a *Attachment) Live() *live.Session { return a.live }

// Changed calls JoinOptions.Changed. With Disconnect, Resume, Secret, Calls and Shared it makes a
// live.Member.
func (a *Attachment) Changed() {
	if a.options.Changed != nil {
		a.options.Changed()
	}
}

// Secret returns "": the daemon itself holds the connection.
func (a *Attachment) Secret() string { return "" }

// Calls returns the number of calls in progress.
func (a *Attachment) Calls() int { return int(a.calls.Load()) }

// Shared reports whether this is the shared attachment of a principal.
func (a *Attachment) Shared() bool { return a.options.shared }

// Target returns the session of the attachment. A fresh session has its generated name.
func (a *Attachment) Target() wire.Target { return a.target }

// Party returns the attachment's party, as others see it.
func (a *Attachment) Party() wire.Party { return a.party }

// open opens the party's stream to the guest, on the session that at names.
func (a *Attachment) open(ctx context.Context, c *connect.Control, at wire.Attach) (*wire.Client,
	error) {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWithin, a.sandbox.Silent(reachWithin))
	defer cancel()
	s, err := c.OpenStream(ctx)
	if err != nil {
		return nil, a.sandbox.Reach(err)
	}
	private := func(off uint64, p []byte) { // output that the guest sends only to this party
		a.mu.Lock()
		l := a.live
		a.mu.Unlock()
		if l != nil {
			a.secret.Output(a.life, l, off, p)
		}
	}
	party := a.party
	at.Party, at.Quiet, at.From = &party, true, wire.Offset{Word: wire.FromNow}
	client, err := wire.Open(ctx, s, at, wire.Handler{Event: a.event, Output: private})
	if err != nil {
		if refused, ok := errors.AsType[*wire.Error](err); ok {
			return nil, live.InboundError(refused)
		}
		return nil, a.sandbox.Reach(err)
	}
	a.mu.Lock()
	err = a.Err()
	if err == nil {
		a.client, a.resumes = client, client.Attached().Resume
		a.incarnation = client.Attached().Incarnation
		if client.Attached().Keyboard != party.String() {
			a.holds = false
		}
	}
	a.mu.Unlock()
	if err != nil {
		client.Leave()
		return nil, err
	}
	return client, nil
}

// event updates who holds the keyboard. An agent holds it by name, with all its connections.
func (a *Attachment) event(e wire.Event) {
	if e.Kind == wire.EventPrivate && e.By == "" {
		a.secret.End()
	}
	a.mu.Lock()
	l := a.live
	a.seq = max(a.seq, e.Seq)
	switch {
	case e.Kind == wire.EventCommand && e.ID != "" && e.ID == a.party.ID:
		a.undone = e
	case e.Kind != wire.EventKeyboard:
		l = nil
	case e.Keyboard != a.party.String():
		a.holds = false
	case e.ID != "" && a.party.Kind == wire.Person:
		a.holds, a.told = e.ID == a.party.ID, true // also if another party gave it to this one
	}
	a.mu.Unlock()
	if l != nil { // the copy may have processed the event before, and does not notify again
		l.Notify()
	}
}

// Undone reports that the shell discarded an unsent line of the party to run a command. by names
// the party that ran the command; seq grows with each such event and is 0 if there was none.
func (a *Attachment) Undone() (by string, seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.undone.By, a.undone.Seq
}

// calling counts a call of the party until done is called. It notifies viewers of the list of
// parties, because a shared attachment is listed only while a call is under way.
func (a *Attachment) calling() (done func()) {
	count := func(by int32) {
		a.calls.Add(by)
		if a.options.shared {
			a.live.Notify()
		}
	}
	count(1)
	return func() {
		a.sandbox.Touch()
		count(-1)
	}
}

// The smallest terminal that a window gives a session. vim draws nothing in a smaller one, and
// readline 8.2 divides by zero at 2 × 1, which ends bash and so the session for all parties.
const (
	minCols = 12
	minRows = 2
)

// terminalFor returns the terminal size of a session for a driver's window of cols × rows, within
// the limits. The window clips a larger terminal. 0 is an unknown size.
func terminalFor(cols, rows int) (int, int) {
	if cols > 0 {
		cols = min(max(cols, minCols), wire.MaxCols)
	}
	if rows > 0 {
		rows = min(max(rows, minRows), wire.MaxRows)
	}
	return cols, rows
}

// Resize sets the size of the attachment's window. While the attachment drives, the session has
// that size, within the limits of a terminal.
func (a *Attachment) Resize(ctx context.Context, cols, rows int) error {
	cols, rows = terminalFor(wire.ClampSize(uint32(max(cols, 0)), uint32(max(rows, 0))))
	a.mu.Lock()
	a.cols, a.rows = cols, rows
	drove := a.client != nil
	a.mu.Unlock()
	if !drove {
		return nil
	}
	_, err := a.Request(ctx, wire.Request{Verb: wire.VerbResize, Cols: cols, Rows: rows})
	return err
}

// Err returns nil while the attachment is open, and then the cause of its end, such as
// interrupt.ErrDisconnected.
func (a *Attachment) Err() error {
	if a.life.Err() == nil {
		return nil
	}
	return context.Cause(a.life)
}

// Wait waits for the attachment's end and returns its cause: io.EOF if the session ended, or
// interrupt.ErrDisconnected. If ctx ends first, it returns ctx's cause.
func (a *Attachment) Wait(ctx context.Context) error {
	ctx, done := a.within(ctx)
	defer done()
	for gen := a.live.Generation(); ; {
		next, err := a.live.Wait(ctx, gen)
		if err != nil {
			return err
		}
		gen = next
	}
}

// Over returns the cause of the attachment's end, as Wait does, or nil while it is open.
func (a *Attachment) Over() error {
	if err := a.Err(); err != nil {
		return err
	}
	return a.live.Over()
}

// Disconnect ends the attachment with a cause; the first cause counts. It gives the keyboard back,
// because the guest keeps the keyboard for a disconnected party that may resume.
func (a *Attachment) Disconnect(cause error) {
	a.mu.Lock()
	client, holds, leave := a.client, a.holds, a.leave
	a.holds, a.leave = false, nil
	a.mu.Unlock()
	if holds && client != nil && client.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), giveWithin)
		if _, err := client.Request(ctx, wire.Request{Verb: wire.VerbGive}); err != nil {
			a.all.options.Log.Debug("keyboard not given back", "sandbox", a.sandbox.Name(),
				"session", a.target.Session, "err", err)
		}
		cancel()
	}
	a.end(cause)
	if a.options.Changed != nil {
		a.options.Changed()
	}
	// A concurrent open sees the end and closes its stream itself.
	a.mu.Lock()
	client = a.client
	a.mu.Unlock()
	if client != nil {
		client.Leave()
	}
	if leave != nil {
		leave()
	}
}

// giveWithin limits the time to give the keyboard back.
const giveWithin = 2 * time.Second

// Close detaches. The session continues unless JoinOptions.Close was set.
func (a *Attachment) Close() error {
	var err error
	if a.options.Close && a.Err() == nil && !a.live.Final() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if _, err = a.Request(ctx, wire.Request{Verb: wire.VerbClose}); err != nil {
			err = fmt.Errorf("close session %s: %w", a.target, err)
		}
		cancel()
		if a.live.Final() || errors.Is(err, &wire.Error{Code: wire.CodeLost}) {
			err = nil // the stream ended with the session, as requested
		}
	}
	a.Disconnect(interrupt.ErrLeft)
	return err
}
