package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// defaultSessions is the most sessions that live at once where the options do not say.
const defaultSessions = 32

// Options of a Set. Start is required.
type Options struct {
	Start Starter
	// Shell says which shell a session without a program of its own runs; it is asked at every start, since a sandbox may
	// install one. Nil leaves the choice, and sessions without marks, to the Starter.
	Shell  func() Shell
	Prober Prober // nil: states have no process facts
	// Prompt says whether text before the cursor is the prompt of a shell that prints no marks. Nil: nobody knows.
	Prompt func(before string) bool
	// Pause sleeps for less than a millisecond, exactly; nil leaves it to the runtime's timers. It is called by at most one
	// goroutine for each session that somebody waits for.
	Pause func(time.Duration)
	// Counters counts what the sandbox's limits did; nil: nobody knows.
	Counters func() Counters
	Name     string // of the sandbox, for prompts and results; empty: SetName says it later
	// MaxSessions is the most sessions at once, dead ones not counted; 0 is 32. As many dead ones are kept, with their logs: a new
	// session takes the place of the one that has been dead longest.
	MaxSessions int
	Log         *slog.Logger // nil discards
}

// Counters are how often the limits of a sandbox did something, since it was started.
type Counters struct {
	OOMKills    int // processes that were killed because there was no memory left
	PidsRefused int // processes that were not started because there were too many
}

// Set is the sessions of one sandbox, by name. Its methods may be called at once.
type Set struct {
	opt    Options
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // the set's own life, which no call bounds
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup         // streams
	name   atomic.Pointer[string] // nil while the sandbox has none

	mu       sync.Mutex // taken before a session's
	sessions map[string]*session
	closed   bool
}

// NewSet returns a Set without sessions. Close ends it.
func NewSet(opt Options) *Set {
	if opt.MaxSessions == 0 {
		opt.MaxSessions = defaultSessions
	}
	if opt.Counters == nil {
		opt.Counters = func() Counters { return Counters{} }
	}
	s := &Set{opt: opt, log: opt.Log, sessions: make(map[string]*session)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if opt.Name != "" {
		s.name.Store(&opt.Name)
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// SetName gives the sandbox a name if it has none. It reports whether name is what it is called.
func (s *Set) SetName(name string) bool {
	return s.name.CompareAndSwap(nil, &name) || *s.name.Load() == name
}

// title is the sandbox's name, empty while it has none.
func (s *Set) title() string {
	if name := s.name.Load(); name != nil {
		return *name
	}
	return ""
}

// Serve speaks one session stream on rw until the other side ends it, ctx ends or the stream breaks, and closes rw. A
// party that was attached keeps its keyboard for a grace of 30 s, in which it can resume; one that leaves for good gives
// first. Only a trusted stream may say who its parties are; the party of another is an agent named "local". The error is
// nil when the other side ended in order.
func (s *Set) Serve(ctx context.Context, rw io.ReadWriteCloser, trusted bool) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		rw.Close()
		return errClosed
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()
	err := newStream(s, rw, trusted).serve(ctx, cancel)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// List returns the sessions by name, dead ones included, with their last known states: it does not look.
func (s *Set) List() []wire.SessionInfo {
	infos := []wire.SessionInfo{}
	for _, one := range s.all() {
		infos = append(infos, one.info())
	}
	sort.Slice(infos, func(i, j int) bool { return infos[i].Name < infos[j].Name }) // see parties.listLocked
	return infos
}

// Begin starts a session without anybody attached, as the guest does for an image's entrypoint. A name that is taken is
// an error with code exists. Such a session is kept when it is dead, for as long as the Set.
func (s *Set) Begin(ctx context.Context, name string, start wire.Start) error {
	one, _, err := s.open(ctx, wire.Attach{Session: name, Fresh: true, Start: &start})
	if err != nil {
		return err
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.kept = true
	return nil
}

// Kill declares a session dead for a reason whose processes have been killed, without waiting to hear of it: a rescue
// kills everything. The session stays, for the next run to start its shell again.
func (s *Set) Kill(name, reason string) {
	one := s.lookup(name)
	if one == nil {
		return
	}
	one.mu.Lock()
	c := one.console
	one.mu.Unlock()
	if c != nil {
		c.died(Exit{Signal: "KILL", Reason: reason})
	}
}

// Close ends all sessions and streams. It returns when their processes are gone, at the latest when ctx ends: then with
// ctx's cause, while they are still being ended.
func (s *Set) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	all := s.sessions
	s.sessions = make(map[string]*session)
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends when every terminal has been closed
		defer close(done)
		var wg sync.WaitGroup
		for _, one := range all {
			wg.Go(func() { one.end("closed") })
		}
		wg.Wait()
		s.cancel(errClosed)
		s.wg.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.cancel(errClosed)
		return context.Cause(ctx)
	}
}

// open returns the session that a means, started if it has to be.
func (s *Set) open(ctx context.Context, a wire.Attach) (one *session, created bool, err error) {
	name := a.Session
	if !a.Fresh || name != wire.NewSession {
		if name, err = wire.ParseLabel("session name", name); err != nil {
			return nil, false, err
		}
		if name == wire.NewSession {
			return nil, false, &wire.Error{Code: wire.CodeUsage, Message: "session name new asks for a fresh session", Hint: "attach with fresh"}
		}
	}
	var start wire.Start
	if a.Start != nil {
		start = *a.Start
	}
	for _, layer := range start.Without {
		if layer != wire.BasisProcess && layer != wire.BasisMark && layer != wire.BasisScreen {
			return nil, false, wire.Errorf(wire.CodeUsage, "no session can go without the layer %.40q", layer)
		}
	}
	one, created, err = s.reserve(a, name, start)
	if err != nil {
		return nil, false, err
	}
	if created {
		if old := s.longestDead(); old != nil {
			s.remove(old)
			old.end("forgotten: it was dead, and others have died since")
		}
		_, err := one.restart(ctx)
		if err != nil {
			one.startErr = one.public(err)
			s.remove(one)
		}
		close(one.ready)
		if err != nil {
			one.end("not started")
			return nil, false, one.startErr
		}
		return one, true, nil
	}
	select {
	case <-one.ready:
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if one.startErr != nil {
		return nil, false, one.startErr
	}
	if a.Create {
		if err := s.roomFor(one); err != nil {
			return nil, false, err
		}
		one.resizeDead(a)
		revived, err := one.restart(ctx)
		if err != nil {
			return nil, false, err
		}
		if revived {
			one.mu.Lock()
			one.revived = true
			one.mu.Unlock()
		}
	}
	return one, false, nil
}

// reserve finds the session, or puts a new one that is still to be started under the name.
func (s *Set) reserve(a wire.Attach, name string, start wire.Start) (one *session, created bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, errClosed
	}
	if a.Fresh && name == wire.NewSession {
		for ok := true; ok; _, ok = s.sessions[name] {
			name = freshName()
		}
	}
	one, found := s.sessions[name]
	switch {
	case found && a.Fresh:
		return nil, false, &wire.Error{Code: wire.CodeExists, Message: "there is a session " + name + " already", Hint: "attach to it, or choose another name"}
	case found:
		return one, false, nil
	case !a.Create && !a.Fresh:
		return nil, false, &wire.Error{Code: wire.CodeNotFound, Message: "no session " + name, Hint: "it starts when it is joined or something is run in it"}
	case s.liveLocked() >= s.opt.MaxSessions:
		return nil, false, s.fullError()
	}
	one = newSession(s, name, start)
	s.sessions[name] = one
	return one, true, nil
}

// roomFor returns an error if starting a dead session again would make one too many.
func (s *Set) roomFor(one *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !one.alive() && s.liveLocked() >= s.opt.MaxSessions {
		return s.fullError()
	}
	return nil
}

func (s *Set) fullError() *wire.Error {
	e := wire.Errorf(wire.CodeLimitSessions, "this sandbox has %d sessions, which is the most", s.opt.MaxSessions)
	e.Hint = "close one"
	return e
}

func (s *Set) liveLocked() int {
	n := 0
	for _, one := range s.sessions {
		if one.alive() {
			n++
		}
	}
	return n
}

// longestDead returns the dead session that is to make room for another; nil if there are not too many.
func (s *Set) longestDead() *session {
	var old *session
	var since int64
	n := 0
	for _, one := range s.all() {
		at, dead := one.deadSince()
		if !dead {
			continue
		}
		if n++; old == nil || at < since {
			old, since = one, at
		}
	}
	if n <= s.opt.MaxSessions {
		return nil
	}
	return old
}

func (s *Set) lookup(name string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[name]
}

func (s *Set) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*session, 0, len(s.sessions))
	for _, one := range s.sessions {
		list = append(list, one)
	}
	return list
}

// remove takes a session out of the set.
func (s *Set) remove(one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[one.name] == one {
		delete(s.sessions, one.name)
	}
}

// internal is the error that a stranger sees for err: an id to find it by in the log.
func (s *Set) internal(doing string, err error) *wire.Error {
	var id [4]byte
	rand.Read(id[:])
	e := wire.Errorf(wire.CodeInternal, "internal error %s", hex.EncodeToString(id[:]))
	e.Hint = "the log of the sandbox's guest says more"
	s.log.Error(doing, "id", hex.EncodeToString(id[:]), "error", err)
	return e
}

func freshName() string {
	var id [4]byte
	rand.Read(id[:])
	return "t-" + hex.EncodeToString(id[:])
}
