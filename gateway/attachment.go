package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Attachment is one party on a session. Its methods may be called at once.
//
// A person who only looks on is known to the hub alone. The party's own stream to the guest is opened when it first
// drives, and again, as the same party, after the connection to the sandbox or the daemon's control connection broke.
type Attachment struct {
	hub     *Hub
	box     *box
	live    *live.Session
	target  wire.Target
	party   wire.Party
	options JoinOptions
	opening chan struct{} // semaphore of who opens the stream
	away    time.Time     // guarded by opening; since when there is none, although it is wanted; zero while there is

	life context.Context //nolint:containedctx // ends with the attachment; its cause says why
	end  context.CancelCauseFunc

	imu  sync.Mutex   // serialises Input
	last *wire.Client // guarded by imu; on which input was sent last
	sent uint64       // guarded by imu; input bytes of last that the guest dealt with

	calls atomic.Int32 // under way

	secret live.PrivateView // taken before the locks of live and mu

	mu          sync.Mutex
	client      *wire.Client // guarded by mu; nil before the party first drives
	resumes     string       // guarded by mu; the secret with which it is the same party again; empty before it first drives
	incarnation string       // guarded by mu; of the shell that the session had when client was opened
	cols        int          // guarded by mu
	rows        int          // guarded by mu
	holds       bool         // guarded by mu
	told        bool         // guarded by mu; the guest says by ID who holds the keyboard
	seq         uint64       // guarded by mu; of the newest event on the party's stream
	undone      wire.Event   // guarded by mu; the newest command for which the shell threw away what the party had typed
	leave       func()       // guarded by mu; takes the party off the replica's list
}

// Live is the session's replica.
func (a *Attachment) Live() *live.Session { return a.live }

// Changed, Disconnect, Resume, Secret, Calls and Shared make it a live.Member.
func (a *Attachment) Changed() {
	if a.options.Changed != nil {
		a.options.Changed()
	}
}

// Disconnect ends the attachment for a cause.
func (a *Attachment) Disconnect(cause error) { a.finish(cause) }

// Resume opens the party's stream again on c, so that it keeps what it holds.
func (a *Attachment) Resume(ctx context.Context, c *connect.Control) { a.reattach(ctx, c) }

// Secret is empty: the daemon itself holds the connection.
func (a *Attachment) Secret() string { return "" }

// Calls is the number of calls under way.
func (a *Attachment) Calls() int { return int(a.calls.Load()) }

// Shared reports whether it is the shared attachment of a principal.
func (a *Attachment) Shared() bool { return a.options.standing }

// Target is where the attachment is, with the name that a fresh session was given.
func (a *Attachment) Target() wire.Target { return a.target }

// Party is how the attachment appears to others.
func (a *Attachment) Party() wire.Party { return a.party }

// open opens the party's stream to the guest. at says to which session.
func (a *Attachment) open(ctx context.Context, c *connect.Control, at wire.Attach) (*wire.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWithin, a.box.silent(reachWithin))
	defer cancel()
	s, err := c.OpenStream(ctx)
	if err != nil {
		return nil, a.box.reach(err)
	}
	party := a.party
	at.Party, at.Quiet, at.From = &party, true, wire.Offset{Word: wire.FromNow}
	client, err := wire.Open(ctx, s, at, wire.Handler{Event: a.event, Output: a.secretOutput})
	if err != nil {
		if refused, ok := errors.AsType[*wire.Error](err); ok {
			return nil, live.InboundError(refused)
		}
		return nil, a.box.reach(err)
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

// event watches who holds the keyboard. An agent holds it by name: all its parties are one.
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
		a.holds, a.told = e.ID == a.party.ID, true // also when another has given it to this one
	}
	a.mu.Unlock()
	if l != nil { // which has heard of it before, perhaps, and waits for nothing
		l.Notify()
	}
}

// Undone tells of a line that the party had typed at the shell's prompt and not sent, when the shell emptied it to run a command:
// by is whose command, and seq grows with each. It is 0 when there was none.
func (a *Attachment) Undone() (by string, seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.undone.By, a.undone.Seq
}

// rememberedFor is how long a guest remembers a party that was cut off.
const rememberedFor = 30 * time.Second

const (
	firstRetry = 50 * time.Millisecond // pauses between tries to open a party's stream
	maxRetry   = time.Second
)

// stream returns the party's stream. Where there is none that lives, open opens one.
func (a *Attachment) stream(ctx context.Context, open func(context.Context) (*wire.Client, error)) (*wire.Client, error) {
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
	ctx, done := a.hub.tasks.bound(ctx)
	defer done()
	client, err := open(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return client, err
}

// anew opens the party's stream, first or again, in a sandbox that is started for it if need be. When a connection breaks, the next one
// may, too: it is tried again for as long as the guest remembers the party, unless something is known to be wrong.
func (a *Attachment) anew(ctx context.Context) (*wire.Client, error) {
	ctx, done := a.box.stops.within(ctx)
	defer done()
	return a.openOn(ctx, func(ctx context.Context) (*connect.Control, error) {
		return a.box.controlOf(ctx, a.party, a.target.Session, a.options.Create || a.options.Fresh, nil)
	}, a.options.Create && !a.options.Fresh)
}

// openOn opens the party's stream, first or again, on the connection that control returns. create starts a session that is missing.
func (a *Attachment) openOn(ctx context.Context, control func(context.Context) (*connect.Control, error), create bool) (*wire.Client, error) {
	if a.away.IsZero() {
		a.away = time.Now()
	}
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		client, err := a.reopen(ctx, control, create)
		switch {
		case err == nil:
			a.away = time.Time{}
			return client, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !isPassing(err) || time.Since(a.away) > rememberedFor:
			return nil, err
		case a.isNew() && errors.As(err, new(*silentError)):
			return nil, err // it has nothing to lose, and has waited
		case !sleep(ctx, pause):
			return nil, context.Cause(ctx)
		}
	}
}

// isNew reports whether the guest has not known the party yet.
func (a *Attachment) isNew() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.resumes == ""
}

// reopen opens the stream: as the party that it was or, when the guest no longer knows that, as another one, which holds
// nothing.
func (a *Attachment) reopen(ctx context.Context, control func(context.Context) (*connect.Control, error), create bool) (*wire.Client, error) {
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
		if _, err := client.Request(ctx, wire.Request{Verb: wire.VerbResize, Cols: cols, Rows: rows}); err != nil && client.Err() != nil {
			return nil, a.box.reach(client.Err())
		}
	}
	return client, nil
}

// reattach opens the stream again on a new control connection, so that the party keeps what it holds. It starts no sandbox: nobody has
// called.
func (a *Attachment) reattach(ctx context.Context, c *connect.Control) {
	a.mu.Lock()
	had := a.client != nil && a.Err() == nil
	a.mu.Unlock()
	if !had {
		return
	}
	open := func(ctx context.Context) (*wire.Client, error) {
		return a.openOn(ctx, func(context.Context) (*connect.Control, error) { return c, nil }, a.options.Create && !a.options.Fresh)
	}
	if _, err := a.stream(ctx, open); err != nil && ctx.Err() == nil {
		a.hub.log.Debug("party not attached again", "sandbox", a.box.id, "session", a.target.Session, "party", a.party.String(), "err", err)
	}
}

// within returns ctx, which also ends when the attachment does.
func (a *Attachment) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(a.life, func() { cancel(a.Err()) })
	return ctx, func() { stop(); cancel(nil) }
}

// Input sends bytes to the terminal, taking the keyboard if it is free. A *wire.Error says that they were refused: its
// message names the holder. When the connection to the sandbox breaks, the bytes that it had not taken are sent again on
// the next one, and none twice.
func (a *Attachment) Input(ctx context.Context, p []byte) error {
	if err := a.mayDrive(); err != nil {
		return err
	}
	defer a.calling()()
	ctx, done := a.within(ctx)
	defer done()
	a.imu.Lock()
	defer a.imu.Unlock()
	if err := a.box.wake(ctx); err != nil {
		return err
	}
	client, err := a.stream(ctx, a.anew)
	if err != nil {
		return err
	}
	s := &sent{party: client.Attached().Resume}
	if client != a.last {
		a.last, a.sent = client, client.Attached().Accepted
	}
	for {
		err = client.Input(ctx, p)
		if err == nil {
			a.took()
		}
		if !broke(ctx, client, err) {
			a.sent = client.Sent() // also what was refused, and what nobody waited for any longer
			return err
		}
		if client, err = a.resumed(ctx, s); err != nil {
			return err
		}
		at := client.Attached()
		if at.Accepted < a.sent {
			return wire.LostError(wire.LostGuest, "the connection to the sandbox broke; it is not known how much of the input arrived")
		}
		p = p[min(at.Accepted-a.sent, uint64(len(p))):]
		a.last, a.sent = client, at.Accepted
	}
}

// Request asks the session for something else: run, type, keys, wait, screen… What it does is done once, also when the
// connection to the sandbox breaks in the middle. A call whose end is not known, as when its sandbox was stopped, has a Result with
// Ended lost beside the error.
func (a *Attachment) Request(ctx context.Context, r wire.Request) (wire.Reply, error) {
	if r.Party != nil {
		return wire.Reply{}, wire.Errorf(wire.CodeUsage, "party comes from the login")
	}
	if r.Drives() {
		if err := a.mayDrive(); err != nil {
			return wire.Reply{}, err
		}
	}
	if r.Op == "" && (r.Verb == wire.VerbRun || types(r.Verb)) {
		r.Op = wire.NewOp()
	}
	defer a.calling()()
	caller := ctx
	ctx, done := a.within(ctx)
	defer done()
	ctx, over := a.box.pauses.within(ctx) // before the state is read, so that no pause is missed
	defer over()
	resumes, err := a.box.admits(a.party.Rights, r.Verb, a.target.Session)
	if resumes {
		err = a.box.wake(ctx)
	}
	if err != nil {
		return wire.Reply{}, err
	}
	ctx, heard := a.box.listening(ctx)
	defer heard()
	c := beginCall(a.box, a.live, a.target, r)
	defer c.End()
	client, err := a.clientFor(ctx, r)
	if err != nil {
		return wire.Reply{}, pausedOr(ctx, err)
	}
	if refused := incomplete(client.Attached().Shell, r); refused != nil {
		return wire.Reply{Error: refused}, refused
	}
	reply, err := a.send(ctx, client, c)
	return a.answer(ctx, caller, c, reply, err)
}

// types reports whether a request is text for what runs in the session.
func types(v wire.Verb) bool { return v == wire.VerbType || v == wire.VerbKeys }

// clientFor returns the party's stream for a request. Text that is typed is for the shell that the party knows, or for
// what runs there: it starts nothing, and is refused when that has ended.
func (a *Attachment) clientFor(ctx context.Context, r wire.Request) (*wire.Client, error) {
	if !types(r.Verb) {
		return a.stream(ctx, a.anew)
	}
	was := a.shell()
	client, err := a.stream(ctx, a.there)
	if err == nil && was != "" && a.shell() != was {
		e := wire.Errorf(wire.CodeUnavailable, "what the text was for has ended with the shell of %s", a.target)
		e.Hint = "nothing was typed; run uses the new shell"
		return nil, e
	}
	return client, err
}

// send makes a request, and makes it again to the same guest as the same party when the connection breaks, if that does
// not repeat what it does.
func (a *Attachment) send(ctx context.Context, client *wire.Client, c *call) (wire.Reply, error) {
	s, r, shell := &sent{party: client.Attached().Resume}, c.Request, a.shell()
	c.Sent()
	reply, err := a.request(ctx, client, r)
	if r.Op != "" {
		r.Incarnation = shell
	}
	for (r.Op != "" || r.Verb == wire.VerbWait || r.Verb == wire.VerbScreen) && broke(ctx, client, err) {
		if client, err = a.resumed(ctx, s); err != nil {
			break
		}
		reply, err = a.request(ctx, client, r)
	}
	a.shellIs(reply.Incarnation)
	return reply, err
}

// answer is what the caller of c gets, to which reply and err are the guest's answer.
func (a *Attachment) answer(ctx, caller context.Context, c *call, reply wire.Reply, err error) (wire.Reply, error) {
	lost := a.whyLost(ctx, caller, c, reply, err)
	if !hasResult(c.Request.Verb) {
		lost = nil // the error says what there is to say
	}
	if lost == nil || reply.Result != nil {
		settled := err
		if settled == nil || lost != nil {
			settled = a.settled(ctx, reply)
		}
		c.complete(ctx, &reply, lost)
		a.noShell(reply.Result)
		if errors.As(settled, new(*silentError)) {
			settled = a.box.reach(settled)
		}
		if err = settled; lost != nil {
			err = lost // that counts
		}
	}
	if paused, ok := errors.AsType[*pausedError](err); ok && lost == nil && hasResult(c.Request.Verb) { // before its output was here
		lost, reply.Result = paused.lost, nil
	}
	if lost != nil && reply.Result == nil {
		a.box.lastWords(caller, a.live)
		reply, _ = c.lose(ctx, lost, maxReply/2)
		err = lost
	}
	if unrecorded := lostUnrecorded(a.live); unrecorded != nil { // last: what it printed may be seen by nobody
		reply, err = wire.Reply{Error: unrecorded}, unrecorded
		if hasResult(c.Request.Verb) {
			reply.Result = wire.LostResult(a.target, unrecorded)
		}
	}
	return reply, err
}

// calling notes that the party does something, until what it returns is called.
func (a *Attachment) calling() (done func()) {
	a.calls.Add(1)
	a.comesOrGoes()
	return func() {
		a.box.touch()
		a.calls.Add(-1)
		a.comesOrGoes()
	}
}

// comesOrGoes wakes those who show who is attached: a standing party is while a call of it is under way.
func (a *Attachment) comesOrGoes() {
	if a.options.standing {
		a.live.Notify()
	}
}

// settled waits until the replica knows what an answer tells of: nobody hears of bytes that are not in the record, and
// who asks the replica next finds it no older than the answer.
func (a *Attachment) settled(ctx context.Context, reply wire.Reply) error {
	a.mu.Lock()
	seq := a.seq
	a.mu.Unlock()
	if err := a.live.CaughtUp(ctx, seq); err != nil {
		return a.box.reach(err)
	}
	if reply.Result == nil {
		return nil
	}
	for gen := a.live.Generation(); a.live.Len() < reply.Result.To; {
		next, err := a.live.Wait(ctx, gen)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		gen = next
	}
	return nil
}

// The smallest terminal that a session gets from a window: vim draws for no smaller one, and readline 8.2 divides by zero in one of
// 2 × 1, which ends bash and with it the session of everybody else.
const (
	minCols = 12
	minRows = 2
)

// terminalFor is the size of a session's terminal whose driver has that much room for it: what of it is too large is clipped there. 0 is a
// size that is not known.
func terminalFor(cols, rows int) (int, int) {
	if cols > 0 {
		cols = min(max(cols, minCols), wire.MaxCols)
	}
	if rows > 0 {
		rows = min(max(rows, minRows), wire.MaxRows)
	}
	return cols, rows
}

// Resize says how much room the attachment's window has for the session. That becomes the session's size while the attachment drives, but
// for what is too small or too large for a terminal.
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

// Err is nil while the attachment lives; ErrKicked when somebody ended it.
func (a *Attachment) Err() error {
	if a.life.Err() == nil {
		return nil
	}
	return context.Cause(a.life)
}

// Wait returns the attachment's end: io.EOF when the session ended, ErrKicked, or ctx's cause.
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

// Over says why the attachment is at its end, as Wait does; nil while it goes on.
func (a *Attachment) Over() error {
	if err := a.Err(); err != nil {
		return err
	}
	return a.live.Over()
}

// finish ends the attachment for a reason; the first one counts. A party that goes for good gives the keyboard back: the
// guest keeps that of one which was cut off, for it may come again.
func (a *Attachment) finish(why error) {
	a.mu.Lock()
	client, holds, leave := a.client, a.holds, a.leave
	a.holds, a.leave = false, nil
	a.mu.Unlock()
	if holds && client != nil && client.Err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), giveWithin)
		if _, err := client.Request(ctx, wire.Request{Verb: wire.VerbGive}); err != nil {
			a.hub.log.Debug("keyboard not given back", "sandbox", a.box.id, "session", a.target.Session, "err", err)
		}
		cancel()
	}
	a.end(why)
	if a.options.Changed != nil {
		a.options.Changed()
	}
	// Who opens the stream at this moment closes it again, for it sees the end.
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

// giveWithin bounds the good manners of one who leaves.
const giveWithin = 2 * time.Second

// errLeft ends an attachment that its owner closed.
var errLeft = errors.New("detached")

// Close detaches. The session goes on unless JoinOptions.Close was set.
func (a *Attachment) Close() error {
	var err error
	if a.options.Close && a.Err() == nil && !a.live.Final() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if _, err = a.Request(ctx, wire.Request{Verb: wire.VerbClose}); err != nil {
			err = fmt.Errorf("close session %s: %w", a.target, err)
		}
		cancel()
		if a.live.Final() || errors.Is(err, &wire.Error{Code: wire.CodeLost}) {
			err = nil // its stream ended with the session, as was asked for
		}
	}
	a.finish(errLeft)
	return err
}
