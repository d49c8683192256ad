package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// LaggedError is returned by a read where bytes are missing: they fell out before anybody could record them, or were not
// to be kept. Reading goes on at offset To.
type LaggedError struct {
	From, To uint64
	Why      string // as record.GapError
}

func (e *LaggedError) Error() string {
	return fmt.Sprintf("bytes %d to %d are missing: %s", e.From, e.To, e.Why)
}

// Live is the daemon's copy of one session: every reader outside the sandbox reads it, by offset, at its own pace. Its
// methods may be called at once and never make the session wait.
type Live struct {
	box   *box
	name  string
	begun int64 // milliseconds of Unix time, as the guest says: tells one run of a name from the next
	argv  []string

	framed uint64 // of the goroutine that tidies: keyframes are there up to here

	// Bytes and events go to the record first, then here, from the one goroutine that reads the replica's stream.
	display display

	mu        sync.Mutex
	rec       *record.Writer    // guarded by mu; nil while the disk lets us make none
	replica   replica           // guarded by mu
	printed   time.Time         // guarded by mu; when output came last
	troubled  string            // guarded by mu; why the record has not got everything; logged once
	gen       uint64            // guarded by mu
	wake      chan struct{}     // guarded by mu; closed at the next change; nil while nobody waits
	seq       uint64            // guarded by mu; of the newest event in what follows
	state     wire.State        // guarded by mu
	keyboard  string            // guarded by mu
	asking    string            // guarded by mu; who wants it
	private   string            // guarded by mu; who has a private stretch
	typed     string            // guarded by mu; who typed last
	cols      int               // guarded by mu
	rows      int               // guarded by mu
	members   []*member         // guarded by mu; who is attached through us
	claim     *connect.Control  // guarded by mu; on which the session is followed
	floor     uint64            // guarded by mu; the log is at least this long in the guest
	announced announced         // guarded by mu
	edges     edges             // guarded by mu
	need      attention.Tracker // guarded by mu
	glance    glance            // guarded by mu
	denials   denials           // guarded by mu
	again     bool              // guarded by mu; there was a session of this name before, and no Result has said so
	ended     bool              // guarded by mu; for good
	unkept    string            // guarded by mu; why a strict session's output could not be recorded, which ended it
	closed    error             // guarded by mu; why the replica is no longer fed, if the session has not ended
}

// member is a party that is attached through the hub.
type member struct {
	party      wire.Party
	attachment *Attachment // nil for the party of a stream
	// changed is called with Live.mu held, as JoinOptions.Changed; nil if nobody wants to know.
	changed func()
	// kick ends the attachment.
	kick func(error)
	// secret is that with which the client of a stream could be the same party again; empty without one.
	secret string
	// resume opens its stream to the guest again; nil if it has none that outlives a connection.
	resume func(ctx context.Context, c *connect.Control)
}

func newLive(b *box, info wire.SessionInfo, rec *record.Writer) *Live {
	l := &Live{box: b, name: info.Name, begun: info.Created, argv: info.Argv, rec: rec, state: info.State, keyboard: info.Keyboard,
		private: info.Private}
	l.cols, l.rows = wire.ClampSize(uint32(max(info.Cols, 0)), uint32(max(info.Rows, 0)))
	if rec != nil {
		l.seq = rec.Seq()
		l.replica.skip(rec.End())
	}
	l.noteNeedLocked()
	return l
}

// Name is the session's name.
func (l *Live) Name() string { return l.name }

// Sandbox is the name of its sandbox.
func (l *Live) Sandbox() string { return l.box.title() }

// ReadAt waits until there is something at off and reads it. It returns io.EOF at the end of a session that has ended,
// and *LaggedError where bytes are missing. A session whose shell has ended goes on when somebody runs something in it:
// then there is more after io.EOF.
func (l *Live) ReadAt(ctx context.Context, off uint64, p []byte) (int, error) {
	for {
		n, wait, err := l.readNow(off, p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// readNow reads what is there. If there is nothing it returns a channel that is closed at the next change; together with
// io.EOF if there may never be one, alone with it if there never will be.
func (l *Live) readNow(off uint64, p []byte) (n int, wait <-chan struct{}, err error) {
	l.mu.Lock()
	if off >= l.replica.end {
		defer l.mu.Unlock()
		switch {
		case l.ended:
			return 0, nil, io.EOF
		case l.closed != nil:
			return 0, nil, l.closed
		case l.overLocked():
			return 0, l.changedLocked(), io.EOF
		}
		return 0, l.changedLocked(), nil
	}
	n = l.replica.read(p, off)
	rec, start := l.rec, l.replica.start
	l.mu.Unlock()
	if n > 0 || len(p) == 0 {
		return n, nil, nil
	}
	if rec == nil {
		return 0, nil, &LaggedError{From: off, To: start, Why: record.WhyFull}
	}
	n, err = rec.ReadAt(p, off)
	var gap *record.GapError
	switch {
	case errors.As(err, &gap):
		l.mu.Lock()
		defer l.mu.Unlock()
		return 0, nil, l.replica.lagged(gap)
	case errors.Is(err, io.EOF):
		// The record is behind: what it lacks was never written.
		return 0, nil, &LaggedError{From: off, To: max(start, off+1), Why: record.WhyFull}
	case err != nil:
		return 0, nil, fmt.Errorf("read the record: %w", err)
	}
	return n, nil, nil
}

// Len is the length of the log so far.
func (l *Live) Len() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replica.end
}

// State is what the session was doing when it last said so.
func (l *Live) State() wire.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Keyboard is the holder, as Party.String, or empty.
func (l *Live) Keyboard() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keyboard
}

// Size is the terminal's.
func (l *Live) Size() (cols, rows int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cols, l.rows
}

// Recording says why the session's record has not got everything that it printed lately, or is empty.
func (l *Live) Recording() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.troubled
}

// Parties are those attached, drivers and watchers, without the daemon itself. A principal whose calls of the command table are over is
// attached no more.
func (l *Live) Parties() []wire.Party {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.partiesLocked()
}

func (l *Live) partiesLocked() []wire.Party {
	all := make([]wire.Party, 0, len(l.members))
	for _, m := range l.members {
		if !l.restsLocked(m) {
			all = append(all, m.party)
		}
	}
	slices.SortFunc(all, func(a, b wire.Party) int {
		return strings.Compare(a.String()+"\x00"+a.ID, b.String()+"\x00"+b.ID)
	})
	return all
}

// Ended reports whether the session, or its shell, has ended and its last byte is here.
func (l *Live) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.overLocked()
}

// overLocked reports whether the shell has ended and all that it printed is here: that it has may be known before, from the answer to
// an attach.
func (l *Live) overLocked() bool {
	return l.ended || l.state.Phase == wire.PhaseDead && l.replica.end >= max(l.floor, l.state.Offset)
}

// final reports whether nothing can come any more.
func (l *Live) final() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// caughtUp waits until the replica has seen the event seq, for a caller who has heard of what happened there.
func (l *Live) caughtUp(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reachWithin, errors.New("the session's replica is behind"))
	defer cancel()
	for {
		l.mu.Lock()
		there, wait := l.seq >= seq || l.ended || l.closed != nil, l.changedLocked()
		l.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Generation grows with every change: output, state, keyboard, size, parties.
func (l *Live) Generation() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gen
}

// Wait returns the generation once it is no longer gen, or ctx's cause. At the last one of a session that has ended, or
// whose shell has, it returns io.EOF.
func (l *Live) Wait(ctx context.Context, gen uint64) (uint64, error) {
	for {
		l.mu.Lock()
		now, ended, closed := l.gen, l.overLocked(), l.closed
		var wait <-chan struct{}
		if now == gen && !ended && closed == nil {
			wait = l.changedLocked()
		}
		l.mu.Unlock()
		switch {
		case now != gen:
			return now, nil
		case ended:
			return now, io.EOF
		case closed != nil:
			return now, closed
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return now, context.Cause(ctx)
		}
	}
}

// changedLocked returns a channel that is closed at the next change.
func (l *Live) changedLocked() <-chan struct{} {
	if l.wake == nil {
		l.wake = make(chan struct{})
	}
	return l.wake
}

// changeLocked wakes everybody who waits.
func (l *Live) changeLocked() {
	l.gen++
	for _, m := range l.members {
		if m.changed != nil {
			m.changed()
		}
	}
	if l.wake != nil {
		close(l.wake)
		l.wake = nil
	}
}

// Info is the session as lists show it.
func (l *Live) Info() wire.SessionInfo { return l.info() }

func (l *Live) info() wire.SessionInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return wire.SessionInfo{Private: l.private, Name: l.name, State: l.state, Keyboard: l.keyboard, Cols: l.cols, Rows: l.rows,
		Parties: l.partiesLocked(), Argv: l.argv, Created: l.begun, Offset: l.replica.end}
}

// join adds a member and returns what removes it again.
func (l *Live) join(m *member) (leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members = append(l.members, m)
	l.changeLocked()
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.members = slices.DeleteFunc(l.members, func(o *member) bool { return o == m })
		l.changeLocked()
	}
}

// restsLocked reports whether m is the standing party of a principal none of whose calls is under way, and which holds nothing: whose it
// is has left, and may never come back.
func (l *Live) restsLocked(m *member) bool {
	return m.attachment != nil && m.attachment.options.standing && m.attachment.calls.Load() == 0 && m.party.String() != l.keyboard
}

func (l *Live) attached() []*member {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.members)
}

// end says that the session has ended, in this state, and finishes its record. Once is enough.
func (l *Live) end(state wire.State) {
	l.mu.Lock()
	rec, ended := l.rec, l.ended
	if !ended && l.state.Phase == wire.PhaseDead {
		state = l.state // how its shell ended says more than that the session was closed
	}
	l.mu.Unlock()
	if ended {
		return
	}
	if rec != nil {
		if err := rec.Finish(state); err != nil {
			l.box.hub.log.Warn("record not finished", "sandbox", l.box.id, "session", l.name, "err", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended, l.state, l.keyboard = true, state, ""
	l.noteNeedLocked()
	l.changeLocked()
}

// shut says that the replica is no longer fed although the session goes on: the daemon ends.
func (l *Live) shut(cause error) {
	l.mu.Lock()
	rec := l.rec
	if l.closed == nil {
		l.closed = cause
	}
	l.changeLocked()
	l.mu.Unlock()
	if rec != nil {
		if err := rec.Close(); err != nil {
			l.box.hub.log.Warn("record not closed", "sandbox", l.box.id, "session", l.name, "err", err)
		}
	}
}

// tidy makes the record durable, tries again to make one where there was no space, and lets go of what nobody uses.
func (l *Live) tidy(idle time.Duration) {
	l.mu.Lock()
	rec, ended := l.rec, l.ended
	if rec != nil && time.Since(l.printed) > idle {
		l.replica.shrink()
	}
	l.mu.Unlock()
	if rec != nil {
		if err := rec.Tidy(idle); err != nil {
			l.trouble(err)
		}
		l.addKeyframes(rec)
	} else if !ended {
		l.box.rerecord(l)
	}
	l.display.expire()
}

// trouble notes, and logs once, that the record has not got everything.
func (l *Live) trouble(err error) {
	word := ""
	switch {
	case err == nil, errors.Is(err, record.ErrPrivate):
	case errors.Is(err, record.ErrStopped):
		word = record.WhyQuota
	default:
		word = firstLine(err)
	}
	l.mu.Lock()
	before := l.troubled
	l.troubled = word
	l.mu.Unlock()
	switch {
	case word != "" && before == "":
		l.box.hub.log.Warn("recording is held up; the session goes on", "sandbox", l.box.id, "session", l.name, "err", err)
	case word == "" && before != "":
		l.box.hub.log.Info("recording goes on", "sandbox", l.box.id, "session", l.name)
	}
}
