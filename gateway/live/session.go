// Package live keeps the daemon's copy of the sessions of one sandbox. [Sessions] is the set of
// them, a [Session] the copy of one: its log by offset, its state, its screen, who is attached, and
// what was blocked while a call ran. Bytes and events go to the session's record first and then
// here, so nobody sees what is not recorded. Reach for it to read or follow a session. It knows no
// sandbox, no login and no attachment's own stream to the guest.
package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// LaggedError is returned by a read where bytes are missing: they were gone before anybody could
// record them, or were not to be kept. Reading goes on at offset To.
type LaggedError struct {
	From, To uint64
	Why      string // as record.GapError
}

func (e *LaggedError) Error() string {
	return fmt.Sprintf("bytes %d to %d are missing: %s", e.From, e.To, e.Why)
}

// Member is a party that is attached to a session through the daemon.
type Member interface {
	Party() wire.Party

	// Changed is called after every change of the session. The session is locked: it must neither
	// wait nor call it.
	Changed()

	// Disconnect ends the attachment for a cause.
	Disconnect(cause error)

	// Resume opens the party's stream to the guest again, on c, if it has one that outlives a
	// connection.
	Resume(ctx context.Context, c *connect.Control)

	// Secret is what makes the client the same party on another connection; empty without one.
	Secret() string

	// Calls is the number of the party's calls under way.
	Calls() int

	// Shared reports whether it is a principal's shared attachment. That counts as attached only
	// while a call of it is under way or it holds the keyboard: its client has left and may never
	// come back.
	Shared() bool
}

// Session is the daemon's copy of one session. Every reader outside the sandbox reads it, by
// offset, at its own pace. Its methods are safe for concurrent use and never make the session wait.
//
// Locks: display.mu before mu.
type Session struct {
	// Unseen: the session was made anew under the name of one that ended, as with its sandbox, and
	// no party that may drive has run or typed anything in it. Package attach clears it.
	Unseen atomic.Bool

	set   *Sessions
	name  string
	begun int64 // milliseconds of Unix time, from the guest: tells one run of a name from the next
	argv  []string
	log   *slog.Logger

	framed  uint64 // used by tidy alone; there are key frames up to this offset
	display display

	mu        sync.Mutex
	rec       *record.Writer    // guarded by mu; nil while the disk is too full to make one
	replica   replica           // guarded by mu
	printed   time.Time         // guarded by mu; when output came last
	problem   string            // guarded by mu; why the record lacks something; logged once
	gen       uint64            // guarded by mu
	wake      chan struct{}     // guarded by mu; closed at the next change; nil while nobody waits
	seq       uint64            // guarded by mu; of the newest event in what follows
	state     wire.State        // guarded by mu
	keyboard  string            // guarded by mu
	asking    string            // guarded by mu; who asks for the keyboard
	private   string            // guarded by mu; who is in private mode
	typed     string            // guarded by mu; who typed last
	cols      int               // guarded by mu
	rows      int               // guarded by mu
	members   []Member          // guarded by mu
	claim     *connect.Control  // guarded by mu; the session is followed on it
	floor     uint64            // guarded by mu; the log in the guest is at least this long
	announced announced         // guarded by mu
	edges     edges             // guarded by mu
	need      attention.Tracker // guarded by mu
	again     *time.Timer       // calls observeLocked when need is due
	glance    glance            // guarded by mu
	denials   denials           // guarded by mu
	// Guarded by mu; there was a session of this name before, and no Result has said so.
	restarted bool
	ended     bool // guarded by mu; for good
	// Guarded by mu; why output could not be recorded, which ended it; see Unrecorded.
	lost string
	// Guarded by mu; why the copy is no longer fed although the session has not ended.
	closed error
}

func newSession(set *Sessions, info wire.SessionInfo, rec *record.Writer) *Session {
	s := &Session{set: set, name: info.Name, begun: info.Created, argv: info.Argv, rec: rec,
		state:    info.State,
		keyboard: info.Keyboard, private: info.Private, log: set.log.With("session", info.Name)}
	s.cols, s.rows = wire.ClampSize(uint32(max(info.Cols, 0)), uint32(max(info.Rows, 0)))
	if rec != nil {
		s.seq = rec.Seq()
		s.replica.skip(rec.End())
	}
	s.again = time.AfterFunc(time.Hour, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended {
			s.observeLocked()
			s.changeLocked()
		}
	})
	s.observeLocked()
	return s
}

// Name is the session's name.
func (s *Session) Name() string { return s.name }

// ReadAt waits until there is something at off and reads it. It returns io.EOF at the end of a
// session that has ended, and *LaggedError where bytes are missing. A session whose shell has ended
// goes on when a party runs something in it: then there is more after io.EOF.
func (s *Session) ReadAt(ctx context.Context, off uint64, p []byte) (int, error) {
	for {
		n, wait, err := s.ReadNow(off, p)
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

// ReadNow reads what is there. If there is nothing it returns a channel that is closed at the next
// change; together with io.EOF if there may never be one, io.EOF alone if there never will be one.
func (s *Session) ReadNow(off uint64, p []byte) (n int, wait <-chan struct{}, err error) {
	s.mu.Lock()
	if off >= s.replica.end {
		defer s.mu.Unlock()
		switch {
		case s.ended:
			return 0, nil, io.EOF
		case s.closed != nil:
			return 0, nil, s.closed
		case s.overLocked():
			return 0, s.changedLocked(), io.EOF
		}
		return 0, s.changedLocked(), nil
	}
	n = s.replica.read(p, off)
	rec, start := s.rec, s.replica.start
	s.mu.Unlock()
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
		s.mu.Lock()
		defer s.mu.Unlock()
		return 0, nil, s.replica.lagged(gap)
	case errors.Is(err, io.EOF):
		// The record is behind: what it lacks was never written.
		return 0, nil, &LaggedError{From: off, To: max(start, off+1), Why: record.WhyFull}
	case err != nil:
		return 0, nil, fmt.Errorf("read the record: %w", err)
	}
	return n, nil, nil
}

// Len is the length of the log so far.
func (s *Session) Len() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replica.end
}

// State is what the session did when the guest last reported it.
func (s *Session) State() wire.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Keyboard is the holder, as Party.String, or empty.
func (s *Session) Keyboard() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keyboard
}

// Private is who is in private mode, as Party.String, or empty.
func (s *Session) Private() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.private
}

// Size is the terminal's.
func (s *Session) Size() (cols, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cols, s.rows
}

// Recording says why the session's record lacks some of the newest output, or is empty.
func (s *Session) Recording() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// Ended reports whether the session, or its shell, has ended and its last byte is here.
func (s *Session) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overLocked()
}

// overLocked reports whether the shell has ended and all that it printed is here: the answer to an
// attach may report the end before that.
func (s *Session) overLocked() bool {
	return s.ended || s.state.Phase == wire.PhaseDead &&
		s.replica.end >= max(s.floor, s.state.Offset)
}

// Final reports whether the session has ended for good: nothing comes any more.
func (s *Session) Final() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Over is io.EOF once Ended, the reason when the daemon no longer follows the session, and nil
// before.
func (s *Session) Over() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.overLocked() {
		return io.EOF
	}
	return s.closed
}

// CaughtUp waits until the copy has the event seq, for a caller who knows of it by another way.
func (s *Session) CaughtUp(ctx context.Context, seq uint64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, catchUpWithin, errBehind)
	defer cancel()
	for {
		s.mu.Lock()
		there, wait := s.seq >= seq || s.ended || s.closed != nil, s.changedLocked()
		s.mu.Unlock()
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

const catchUpWithin = 15 * time.Second

var errBehind = errors.New("the session's replica is behind")

// Generation grows with every change: output, state, keyboard, size, parties.
func (s *Session) Generation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen
}

// Wait returns the generation once it is no longer gen, or ctx's cause. At the last one of a
// session that has ended, or whose shell has, it returns io.EOF.
func (s *Session) Wait(ctx context.Context, gen uint64) (uint64, error) {
	for {
		s.mu.Lock()
		now, ended, closed := s.gen, s.overLocked(), s.closed
		var wait <-chan struct{}
		if now == gen && !ended && closed == nil {
			wait = s.changedLocked()
		}
		s.mu.Unlock()
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
func (s *Session) changedLocked() <-chan struct{} {
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake
}

// Notify makes everybody who waits for a change look again.
func (s *Session) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changeLocked()
}

func (s *Session) changeLocked() {
	s.gen++
	for _, m := range s.members {
		m.Changed()
	}
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// Info is the session as lists show it.
func (s *Session) Info() wire.SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return wire.SessionInfo{Private: s.private, Name: s.name, State: s.state, Keyboard: s.keyboard,
		Cols: s.cols, Rows: s.rows,
		Parties: parties(s.members, s.keyboard), Argv: s.argv, Created: s.begun,
		Offset: s.replica.end}
}

// Parties are those attached, drivers and watchers, without the daemon itself. Shared attachments
// whose calls are over are left out.
func (s *Session) Parties() []wire.Party {
	s.mu.Lock()
	defer s.mu.Unlock()
	return parties(s.members, s.keyboard)
}

func parties(members []Member, keyboard string) []wire.Party {
	all := make([]wire.Party, 0, len(members))
	for _, m := range members {
		if !rests(m, keyboard) {
			all = append(all, m.Party())
		}
	}
	slices.SortFunc(all, func(a, b wire.Party) int {
		return strings.Compare(a.String()+"\x00"+a.ID, b.String()+"\x00"+b.ID)
	})
	return all
}

// rests reports whether m is a shared attachment that does nothing and holds nothing.
func rests(m Member, keyboard string) bool {
	return m.Shared() && m.Calls() == 0 && m.Party().String() != keyboard
}

// Join adds a member and returns what removes it again.
func (s *Session) Join(m Member) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = append(s.members, m)
	s.observeLocked()
	s.changeLocked()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.members = slices.DeleteFunc(s.members, func(o Member) bool { return o == m })
		s.observeLocked()
		s.changeLocked()
	}
}

// Members returns the members that have joined.
func (s *Session) Members() []Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.members)
}

// end says that the session has ended, in this state, and finishes its record. Only the first call
// counts.
func (s *Session) end(state wire.State) {
	s.mu.Lock()
	rec, ended := s.rec, s.ended
	if !ended && s.state.Phase == wire.PhaseDead {
		state = s.state // how its shell ended says more than that the session was closed
	}
	s.mu.Unlock()
	if ended {
		return
	}
	if rec != nil {
		if err := rec.Finish(state); err != nil {
			s.log.Warn("record not finished", "err", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended, s.state, s.keyboard = true, state, ""
	s.observeLocked()
	s.changeLocked()
}

// Close says that the copy is no longer fed although the session goes on: the daemon ends.
func (s *Session) Close(cause error) {
	s.mu.Lock()
	rec := s.rec
	if s.closed == nil {
		s.closed = cause
	}
	s.changeLocked()
	s.mu.Unlock()
	if rec != nil {
		if err := rec.Close(); err != nil {
			s.log.Warn("record not closed", "err", err)
		}
	}
}

// Tidy makes the record durable, tries again to make one where there was no space, and releases
// memory and files of a session that has printed nothing for idle.
func (s *Session) Tidy(idle time.Duration) {
	s.mu.Lock()
	rec, ended := s.rec, s.ended
	if rec != nil && time.Since(s.printed) > idle {
		s.replica.shrink()
	}
	s.mu.Unlock()
	if rec != nil {
		if err := rec.Tidy(idle); err != nil {
			s.noteProblem(err)
		}
		addKeyframes(s, rec)
	} else if !ended {
		s.set.rerecord(s)
	}
	s.display.expire()
}

// noteProblem keeps, and logs once, why the record lacks something; nil means that it no longer
// does.
func (s *Session) noteProblem(err error) {
	word := ""
	switch {
	case err == nil, errors.Is(err, record.ErrPrivate):
	case errors.Is(err, record.ErrStopped):
		word = record.WhyQuota
	default:
		word = plainLine(err.Error(), 300)
	}
	s.mu.Lock()
	before := s.problem
	s.problem = word
	s.mu.Unlock()
	switch {
	case word != "" && before == "":
		s.log.Warn("recording is held up; the session goes on", "err", err)
	case word == "" && before != "":
		s.log.Info("recording goes on")
	}
}
