// Package attach connects a party to a session. An [Attachment] serves a person or a raw agent. A
// stream serves an agent that speaks the session protocol itself. A shared attachment serves all
// calls of the command table by one principal. Each sends requests to the guest. It answers each
// request once, with the guest's answer or as lost. The caller passes a [Sandbox] and an authorized
// party. The package does not know about logins, stores and backends.
package attach

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/interrupt"
	"github.com/sandboxd/sandboxd/gateway/live"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Sandbox is the part of a sandbox that attachments use. Its methods are safe for concurrent use.
type Sandbox interface {
	Name() string
	Sessions() *live.Sessions
	// IsHost reports whether the sandbox is an existing machine, on which the guest runs as a
	// program of the account.
	IsHost() bool
	IsPaused() bool
	// StopsAfter returns how long after the last party leaves the idle sandbox stops, or 0 if it
	// does not stop.
	StopsAfter() time.Duration
	MayStay(party wire.Party) error // returns nil while the party keeps its rights in the sandbox
	// MayBegin returns an error if no other session fits. The caller calls done once the session
	// exists or has failed.
	MayBegin() (done func(), e error)
	Touch() // records that the sandbox is in use

	// Control returns the control connection of the sandbox for a party on a session. It starts a
	// stopped sandbox if the party may drive and starts the session. It resumes a paused sandbox if
	// the party may drive.
	Control(ctx context.Context, party wire.Party, session string, starts bool,
		progress func(string)) (*connect.Control, error)
	// Again returns the control connection after one broke. It starts nothing. A permanent error is
	// a *wire.Error with code lost and a reason.
	Again(ctx context.Context) (*connect.Control, error)
	// Answers waits after a connection broke until the sandbox answers again. An error is the loss
	// of the calls in progress.
	Answers(ctx context.Context) *wire.Error
	// Session returns the daemon's copy of a guest's session. fresh says that the session was just
	// started.
	Session(ctx context.Context, c *connect.Control, name string, fresh bool) (*live.Session, error)
	// Wake resumes the sandbox for the principal by if it is paused.
	Wake(ctx context.Context, by string) error
	// Within returns ctx for a call that waits for the guest. The context also ends with an
	// *interrupt.FrozenError when the sandbox is paused or its guest stops answering. The caller
	// calls over.
	Within(ctx context.Context) (_ context.Context, over func())
	Silence() error // returns an error while the guest does not answer

	// Over returns the loss of the calls in progress if the sandbox has ended, as far as is known,
	// else nil.
	Over() *wire.Error
	// Unreachable returns the loss of the calls in progress while the sandbox does not answer.
	Unreachable(err error) *wire.Error
	// Patience returns how long the sandbox may take to answer again after a connection broke.
	Patience() time.Duration
	Reach(err error) error           // wraps a connection error for its owner
	Silent(d time.Duration) error    // returns the error for a guest that has not answered for d
	NotRunning(session string) error // returns the error for a caller that may not start it

	Stops() *interrupt.Event // ends calls that have not been sent yet
}

// Options configure Attachments. All fields are required.
type Options struct {
	Log   *slog.Logger
	Bound func(context.Context) (context.Context, context.CancelFunc) // also ends with the daemon
	// Public returns the part of an error that clients may see.
	Public func(error) *wire.Error
}

// Attachments holds the attachments of one daemon.
type Attachments struct {
	options Options
	wholes  chan struct{} // slots for outputs that are rendered as a whole; each may be large

	mu     sync.Mutex
	shared map[sharedKey]*shared // guarded by mu
	// Guarded by mu; resume secrets of disconnected parties, and when they were disconnected.
	banned map[string]time.Time
}

// New returns an empty Attachments.
func New(o Options) *Attachments {
	return &Attachments{options: o, wholes: make(chan struct{}, maxWholes),
		shared: make(map[sharedKey]*shared), banned: make(map[string]time.Time)}
}

const (
	// reachWithin limits how long a caller waits for a running sandbox.
	reachWithin = 15 * time.Second
	// rememberedFor is how long a guest remembers a disconnected party.
	rememberedFor = 30 * time.Second
	// bannedFor is how long a disconnected party cannot resume. It is longer than a guest remembers
	// a party, because giving back the party's keyboard restarts that time.
	bannedFor = 2*rememberedFor + giveWithin
)

// Join attaches party to a session of sb. The attachment only watches until it first drives. The
// caller closes it.
func (all *Attachments) Join(ctx context.Context, sb Sandbox, party wire.Party, t wire.Target,
	o JoinOptions) (*Attachment, error) {
	if o.Fresh {
		t.Session = wire.NewSession
	}
	if _, err := wire.ParseLabel("session name", t.Session); err != nil {
		return nil, err
	}
	ctx, done := all.options.Bound(ctx)
	defer done()
	c, err := sb.Control(ctx, party, t.Session, o.Create || o.Fresh, o.Progress)
	if err != nil {
		return nil, err
	}
	a := &Attachment{all: all, sandbox: sb, target: t, party: party, options: o,
		opening: make(chan struct{}, 1)}
	a.cols, a.rows = terminalFor(o.Cols, o.Rows)
	a.life, a.end = context.WithCancelCause(context.Background())
	ctx, over := sb.Within(ctx)
	defer over()
	if err := a.begin(ctx, c); err != nil {
		err = interrupt.FrozenOr(ctx, err)
		a.Disconnect(err)
		return nil, err
	}
	if err := sb.MayStay(party); err != nil { // its rights ended meanwhile
		a.Disconnect(interrupt.ErrUnshared)
		return nil, err
	}
	return a, nil
}

// Disconnect ends the attachments to a session of sb that match, with a cause, and returns their
// number. They lose the keyboard, and their resume secrets are no longer accepted.
func (all *Attachments) Disconnect(ctx context.Context, sb Sandbox, l *live.Session, cause error,
	match func(wire.Party) bool) (n int) {
	var stream live.Member // any stream that may still hold the keyboard
	stays := make(map[string]bool)
	for _, m := range l.Members() {
		if !match(m.Party()) {
			stays[m.Party().String()] = true
			continue
		}
		if m.Secret() != "" {
			all.ban(m.Secret())
			stream = m
		}
		m.Disconnect(cause)
		n++
	}
	// An agent holds the keyboard by name, so another connection of the same agent may use it.
	if stream != nil && l.Keyboard() == stream.Party().String() && !stays[stream.Party().String()] {
		if err := giveFor(ctx, sb, l.Name(), stream); err != nil {
			all.options.Log.Warn("keyboard of a party that was disconnected not given back",
				"sandbox", sb.Name(), "session", l.Name(), "err", err)
		}
	}
	return n
}

// giveFor gives back the keyboard for a party whose stream was closed. Otherwise the guest would
// keep it for that party.
func giveFor(ctx context.Context, sb Sandbox, session string, m live.Member) error {
	ctx, cancel := context.WithTimeout(ctx, giveWithin)
	defer cancel()
	party := m.Party()
	c, err := sb.Control(ctx, party, session, true, nil)
	if err != nil {
		return err
	}
	s, err := c.OpenStream(ctx)
	if err != nil {
		return err
	}
	client, err := wire.Open(ctx, s, wire.Attach{Session: session, Resume: m.Secret(),
		Party: &party, Quiet: true}, wire.Handler{})
	if err != nil {
		return err
	}
	defer client.Leave()
	_, err = client.Request(ctx, wire.Request{Verb: wire.VerbGive})
	return err
}

// ban makes Serve reject a resume secret while the guest may remember it.
func (all *Attachments) ban(secret string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for old, since := range all.banned {
		if time.Since(since) > bannedFor {
			delete(all.banned, old)
		}
	}
	all.banned[secret] = time.Now()
}

// isBanned reports whether secret belongs to a disconnected party.
func (all *Attachments) isBanned(secret string) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	since, ok := all.banned[secret]
	return ok && time.Since(since) <= bannedFor
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
