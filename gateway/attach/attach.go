// Package attach connects a party to a session. An [Attachment] serves a person or a raw agent. A
// stream serves an agent that speaks the session protocol itself. A shared attachment serves all
// calls of the command table by one principal. Each sends requests to the guest and answers each
// request once: with the guest's answer, or as lost. The caller passes a [Sandbox] and an
// authorised party. The package knows no login, no store and no backend.
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
	// IsHost reports whether it is an existing machine, on which the guest is a program of the
	// account.
	IsHost() bool
	IsPaused() bool //
	// StopsAfter is how long after the last party leaves the idle sandbox stops; 0 if it does not
	// stop.
	StopsAfter() time.Duration
	MayStay(party wire.Party) error // nil while the party has the rights in it that it came with
	// MayBegin reports whether another session fits. The caller calls done once the session exists
	// or has failed.
	MayBegin() (done func(), e error)
	Touch() // it is used now

	// Control returns its control connection, for a party on a session. A stopped sandbox is
	// started for a party that may drive and starts the session. A paused sandbox is resumed for a
	// party that may drive.
	Control(ctx context.Context, party wire.Party, session string, starts bool,
		progress func(string)) (*connect.Control, error)
	// Again returns the control connection after one broke, and starts nothing. A permanent error
	// is a *wire.Error with code lost and a reason.
	Again(ctx context.Context) (*connect.Control, error)
	// Answers waits until the sandbox answers after a connection broke. An error is the loss of the
	// calls under way.
	Answers(ctx context.Context) *wire.Error
	// Session returns the daemon's copy of a guest's session; fresh says that it was just started.
	Session(ctx context.Context, c *connect.Control, name string, fresh bool) (*live.Session, error)
	// Wake resumes it for the principal by if it is paused.
	Wake(ctx context.Context, by string) error
	// Within is ctx for a call that waits for the guest: it also ends with an
	// *interrupt.FrozenError when the sandbox is paused or its guest falls silent. The caller calls
	// over.
	Within(ctx context.Context) (_ context.Context, over func())
	Silence() error // refuses a call while the guest is silent; nil while it answers

	// Over returns the loss of the calls under way; nil while the sandbox is not known to have
	// ended.
	Over() *wire.Error
	Unreachable(err error) *wire.Error // the loss of the calls under way while it does not answer
	// Patience is how long the sandbox may take to answer again after a connection broke.
	Patience() time.Duration
	Reach(err error) error           // wraps a connection error for its owner
	Silent(d time.Duration) error    // the error of a guest that has not answered for so long
	NotRunning(session string) error // refuses a caller that may not start it

	Stops() *interrupt.Event // ends what was not sent yet
}

// Options configure Attachments. All fields are required.
type Options struct {
	Log   *slog.Logger
	Bound func(context.Context) (context.Context, context.CancelFunc) // ends with the daemon, too
	// Public returns the part of an error that clients may see.
	Public func(error) *wire.Error
}

// Attachments holds the attachments of one daemon.
type Attachments struct {
	options Options
	wholes  chan struct{} // slots for outputs that are rendered as a whole: each may be large

	mu     sync.Mutex
	shared map[sharedKey]*shared // guarded by mu
	// Guarded by mu; resume secrets of parties that were disconnected, since when.
	banned map[string]time.Time
}

// New returns an empty Attachments.
func New(o Options) *Attachments {
	return &Attachments{options: o, wholes: make(chan struct{}, maxWholes),
		shared: make(map[sharedKey]*shared), banned: make(map[string]time.Time)}
}

const (
	// reachWithin bounds how long a caller waits for a sandbox that is said to run.
	reachWithin = 15 * time.Second
	// rememberedFor is how long a guest remembers a party that was cut off.
	rememberedFor = 30 * time.Second
	// bannedFor is how long a disconnected party cannot resume. It is longer than a guest remembers
	// a party, because giving its keyboard back restarts that time.
	bannedFor = 2*rememberedFor + giveWithin
)

// Join attaches party to a session of sb. The attachment watches until it first drives. The caller
// closes it.
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

// Disconnect ends the attachments of a session of sb that match, for a cause, and returns how many.
// They lose the keyboard, and their resume secrets are no longer accepted.
func (all *Attachments) Disconnect(ctx context.Context, sb Sandbox, l *live.Session, cause error,
	match func(wire.Party) bool) (n int) {
	var stream live.Member // one of those that may have left the keyboard behind
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
	// An agent holds the keyboard by name: another connection of the same agent may be using it.
	if stream != nil && l.Keyboard() == stream.Party().String() && !stays[stream.Party().String()] {
		if err := giveFor(ctx, sb, l.Name(), stream); err != nil {
			all.options.Log.Warn("keyboard of a party that was disconnected not given back",
				"sandbox", sb.Name(), "session", l.Name(), "err", err)
		}
	}
	return n
}

// giveFor gives back the keyboard in the name of a party whose stream was cut off. Otherwise the
// guest would keep it for that party.
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

// ban rejects a resume secret for as long as the guest may remember it.
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

// isBanned reports whether secret is that of a party that was disconnected.
func (all *Attachments) isBanned(secret string) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	since, ok := all.banned[secret]
	return ok && time.Since(since) <= bannedFor
}

// sleep waits for d, and reports whether ctx is still live.
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
