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

// defaultSessions is the default of Options.MaxSessions.
const defaultSessions = 32

// Options configure a Set. Start is required.
type Options struct {
	Start Starter
	// Shell returns the shell of sessions without a program. It is called at every start, because a
	// sandbox may install a shell. With nil, the Starter chooses a shell, without marks.
	Shell  func() Shell
	Prober Prober // nil means no process evidence
	// Prompt reports whether text before the cursor is the prompt of a shell without marks. nil
	// means unknown.
	Prompt func(before string) bool
	// Pause sleeps exactly, for less than a millisecond. nil uses the runtime's timers. At most one
	// goroutine per session calls it.
	Pause func(time.Duration)
	// Counters returns the counters of the sandbox's limits. nil means unknown.
	Counters func() Counters
	Name     string // name of the sandbox, for prompts and results; empty: SetName sets it later
	// MaxSessions limits the live sessions; 0 means 32. As many dead sessions are kept with their
	// logs; a new session replaces the one that has been dead longest.
	MaxSessions int
	Log         *slog.Logger // nil discards the log
}

// Counters count the effects of a sandbox's limits since its start.
type Counters struct {
	OOMKills    int // processes that were killed because memory ran out
	PidsRefused int // processes that could not be started because of the limit
}

// Set has the sessions of one sandbox, by name. Its methods are safe for concurrent use.
type Set struct {
	opt    Options
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup         // streams
	name   atomic.Pointer[string] // nil if the sandbox has no name

	mu       sync.Mutex // locked before a session's mu
	sessions map[string]*session
	closed   bool
}

// NewSet returns a Set without sessions. The caller closes it.
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

// SetName sets the name of the sandbox if it has none. It reports whether the sandbox has that name
// now.
func (s *Set) SetName(name string) bool {
	return s.name.CompareAndSwap(nil, &name) || *s.name.Load() == name
}

// sandboxName returns the sandbox's name, or "" if it has none.
func (s *Set) sandboxName() string {
	if name := s.name.Load(); name != nil {
		return *name
	}
	return ""
}

// Serve serves one session stream on rw until the other side closes it, ctx ends or the stream
// breaks, and closes rw. An attached party can be resumed for 30 s, and keeps its keyboard
// meanwhile. A party that leaves finally should give the keyboard back first. Only a trusted stream
// may set its party; others are an agent named "local". The error is nil if the other side closed
// the stream.
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

// List returns all sessions, including dead ones, sorted by name, with their last known states.
func (s *Set) List() []wire.SessionInfo {
	infos := []wire.SessionInfo{}
	for _, one := range s.all() {
		infos = append(infos, one.info())
	}
	sort.Slice(
		infos,
		func(i, j int) bool { return infos[i].Name < infos[j].Name },
	) // see parties.listLocked
	return infos
}

// Begin starts a session without an attachment, such as an image's entrypoint. An existing name is
// an error with code exists. The session is kept after its end, until Close.
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

// Kill sets a session dead, with a reason, after its processes were killed, for example by a
// rescue. The session is kept, and the next run restarts its shell. Kill returns when the calls
// that were under way have ended, or after a second: the sandbox may be stopped next.
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
	ctx, cancel := context.WithTimeout(one.ctx, killedTime)
	defer cancel()
	_ = one.until(ctx, func() bool { return len(one.calls) == 0 }) // or they are late
}

// killedTime is how long the calls of a killed session may take to end.
const killedTime = time.Second

// Close ends all sessions and streams. It returns when their processes have ended. If ctx ends
// first, it returns the cause of ctx, and the processes still end.
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

// open returns the session of a, and starts it if necessary.
func (s *Set) open(ctx context.Context, a wire.Attach) (one *session, created bool, err error) {
	name := a.Session
	if !a.Fresh || name != wire.NewSession {
		if name, err = wire.ParseLabel("session name", name); err != nil {
			return nil, false, err
		}
		if name == wire.NewSession {
			return nil, false, &wire.Error{
				Code:    wire.CodeUsage,
				Message: "session name new is reserved for new sessions",
				Hint:    "attach with fresh",
			}
		}
	}
	var start wire.Start
	if a.Start != nil {
		start = *a.Start
	}
	for _, layer := range start.Without {
		if layer != wire.BasisProcess && layer != wire.BasisMark && layer != wire.BasisScreen {
			return nil, false, wire.Errorf(
				wire.CodeUsage,
				"no session can go without the layer %.40q",
				layer,
			)
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

// reserve returns the session, or adds a new one that must still be started.
func (s *Set) reserve(
	a wire.Attach,
	name string,
	start wire.Start,
) (one *session, created bool, err error) {
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
		return nil, false, &wire.Error{
			Code:    wire.CodeExists,
			Message: "session " + name + " already exists",
			Hint:    "attach to it, or choose another name",
		}
	case found:
		return one, false, nil
	case !a.Create && !a.Fresh:
		return nil, false, &wire.Error{
			Code:    wire.CodeNotFound,
			Message: "no session " + name,
			Hint:    "it starts when it is joined or something is run in it",
		}
	case s.liveLocked() >= s.opt.MaxSessions:
		return nil, false, s.fullError()
	}
	one = newSession(s, name, start)
	s.sessions[name] = one
	return one, true, nil
}

// roomFor returns an error if restarting a dead session would exceed MaxSessions.
func (s *Set) roomFor(one *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !one.alive() && s.liveLocked() >= s.opt.MaxSessions {
		return s.fullError()
	}
	return nil
}

func (s *Set) fullError() *wire.Error {
	e := wire.Errorf(
		wire.CodeLimitSessions,
		"this sandbox has %d sessions, which is the most",
		s.opt.MaxSessions,
	)
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

// longestDead returns the dead session to remove for a new one, or nil if there are not too many.
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

// internal returns the error that clients see for err: an ID to find it in the log.
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
