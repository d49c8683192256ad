package live

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/gateway/record"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options are what the sessions of one sandbox are kept with. All fields but Quota and Strict are
// required.
type Options struct {
	ID      string        // of the sandbox
	Name    func() string // the sandbox's name as it is now
	Records string        // directory of the sandbox's records
	Quota   int64         // bytes of one session's record; 0 is record's default
	Strict  bool          // a session ends when it cannot be recorded
	Log     *slog.Logger

	Board      *attention.Board // hears of changes, and knows who watches
	Principals func() []string  // who may see the sandbox
	// Waits until every connection that the sandbox made so far was judged.
	Settle func(ctx context.Context)
}

// maxSessions is how many sessions of one sandbox are followed. Honest guests have fewer.
const maxSessions = 256

// Sessions holds the sessions of one sandbox. Its methods are safe for concurrent use.
type Sessions struct {
	options Options
	log     *slog.Logger
	blocked blocked

	adopting sync.Mutex // held while a session's record is opened; taken before mu

	mu  sync.Mutex
	all map[string]*Session // guarded by mu; by name
}

// NewSessions returns an empty set.
func NewSessions(o Options) *Sessions {
	return &Sessions{options: o, log: o.Log.With("sandbox", o.ID), all: make(map[string]*Session)}
}

// Get returns the session of that name; nil if it is not known.
func (ss *Sessions) Get(name string) *Session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.all[name]
}

// All returns the sessions, in no order.
func (ss *Sessions) All() []*Session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.Collect(maps.Values(ss.all))
}

// Adopt returns the copy of a session that the guest has, with its record: the one that was begun
// before, if it is of the same run, else a new one.
func (ss *Sessions) Adopt(info wire.SessionInfo) (*Session, error) {
	ss.adopting.Lock()
	defer ss.adopting.Unlock()
	if old := ss.Get(info.Name); old != nil {
		if old.begun == info.Created && !old.Final() {
			old.mu.Lock()
			defer old.mu.Unlock()
			old.floor = max(old.floor, info.Offset)
			return old, nil
		}
		ss.Drop(old, "lost: another session has its name")
	}
	ss.mu.Lock()
	full := len(ss.all) >= maxSessions
	ss.mu.Unlock()
	if full {
		return nil, wire.Errorf(wire.CodeLimitSessions,
			"sandbox %s says that it has more than %d sessions", ss.options.Name(), maxSessions)
	}
	rec, restarted, err := ss.openRecord(info)
	s := newSession(ss, info, rec)
	s.restarted = restarted
	s.Unseen.Store(restarted)
	if err != nil {
		s.noteProblem(err)
	}
	s.floor = info.Offset
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.all[info.Name] = s
	ss.options.Board.Change()
	return s, nil
}

// openRecord opens or makes a session's record. restarted says that there was a session of its name
// before.
func (ss *Sessions) openRecord(info wire.SessionInfo) (rec *record.Writer, restarted bool,
	err error) {
	o := record.Options{Quota: ss.options.Quota, Whole: ss.options.Strict}
	dir := record.Dir(ss.options.Records, info.Name, 0)
	rec, err = record.Open(dir, o)
	switch {
	case err == nil && rec.Begun().UnixMilli() == info.Created && !rec.Finished():
		return rec, false, nil
	case err == nil:
		restarted = true
		// Its session ended while no daemon ran.
		if err := rec.Finish(deadState("lost", rec.End())); err != nil {
			ss.log.Warn("record not finished", "session", info.Name, "err", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		ss.log.Warn("record cannot be continued; it is set aside", "session", info.Name, "err", err)
	}
	o.Title, o.Begun, o.Cols, o.Rows = ss.options.Name()+"~"+info.Name,
		time.UnixMilli(info.Created), info.Cols, info.Rows
	rec, err = record.Create(dir, o)
	return rec, restarted, err
}

// rerecord begins the record of a session for which there was no space.
func (ss *Sessions) rerecord(s *Session) {
	ss.adopting.Lock()
	defer ss.adopting.Unlock()
	if ss.Get(s.name) != s {
		return // the name's record is another session's by now
	}
	rec, _, err := ss.openRecord(s.Info())
	if err != nil {
		s.noteProblem(err)
		return
	}
	s.mu.Lock()
	// Until here nothing was recorded; from here on everything is.
	if err = rec.Skip(s.replica.end, record.WhyFull); err == nil && !s.ended {
		s.rec, rec = rec, nil
	}
	s.mu.Unlock()
	if rec != nil {
		_ = rec.Close() // it has no byte that anybody misses
	}
}

// Drop ends a session that the guest no longer has, and forgets it.
func (ss *Sessions) Drop(s *Session, reason string) {
	s.end(deadState(reason, s.Len()))
	ss.forget(s)
}

// End ends all sessions and finishes their records: their terminals are gone.
func (ss *Sessions) End(cause error) {
	ss.mu.Lock()
	all := ss.all
	ss.all = make(map[string]*Session)
	ss.mu.Unlock()
	ss.options.Board.Change()
	for _, s := range all {
		s.end(deadState(cause.Error(), s.Len()))
	}
}

// forget drops a session that has ended from the set. Its readers still can read it.
func (ss *Sessions) forget(s *Session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.all[s.name] == s {
		delete(ss.all, s.name)
		ss.options.Board.Change()
	}
}

// deadState is the state of a session that ends now, for a reason.
func deadState(reason string, offset uint64) wire.State {
	return wire.State{Phase: wire.PhaseDead, Reason: reason, SinceUnix: time.Now().UnixMilli(),
		Offset: offset, Basis: []wire.Basis{}}
}
