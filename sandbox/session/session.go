// Package session shares one terminal among an agent and any number of people. It manages the
// terminal's log, keyboard, size and state, runs commands in its shell, and serves them as a stream
// of frames.
//
// It runs next to the terminal: in the guest, or in the daemon for a host without a guest. It does
// not depend on SSH, containers or HTTP. The caller passes the terminal and the inspection of its
// processes ([Terminal], [Prober]).
package session

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/keyboard"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// errClosed is the cause of the end of everything in a closed session.
var errClosed = errors.New("session closed")

// session is one named session. Its terminals may change, because the next run replaces a shell
// that has ended, while its log continues.
//
// Locks: mu before log.mu, display.mu and stream.mu. Nothing blocks under mu; only system calls for
// the foreground group, the size and the write deadline of the terminal are made. Writers of the
// terminal hold the semaphore of writer, which is acquired before mu.
type session struct {
	set     *Set
	name    string
	start   wire.Start // as requested, with defaults
	created time.Time

	log     log
	display display
	writer  writer

	starting chan struct{} // semaphore: one goroutine starts a terminal
	ready    chan struct{} // closed after the first start
	startErr *wire.Error   // error of the first start; valid after ready

	wg     sync.WaitGroup  // goroutines of the session
	ctx    context.Context //nolint:containedctx // ends with the session
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	console *console // guarded by mu; the current terminal; nil before the first start
	// guarded by mu; terminals without a shell that other processes still use
	past  []*console
	track *track.Tracker // guarded by mu; state of the current terminal
	// guarded by mu; an attach restarted the shell, and no run has reported it
	revived bool
	size    keyboard.Size // guarded by mu; size of the terminal
	events  events        // guarded by mu
	// guarded by mu; closed at changes; nil if nothing waits
	wake     chan struct{}
	parties  parties        // guarded by mu
	keyboard driver         // guarded by mu
	private  private        // guarded by mu
	answers  answers        // guarded by mu; to terminal queries
	commands uint64         // guarded by mu; number of the newest run
	calls    map[*call]bool // guarded by mu; running calls
	stopping int            // guarded by mu; running interrupts
	ops      ops            // guarded by mu
	waiters  waiters        // guarded by mu; callers that need the prober
	closed   bool           // guarded by mu
	kept     bool           // guarded by mu; stays in the set after its end
	// guarded by mu; closed in private mode: drop further output
	sealed bool
}

func newSession(set *Set, name string, start wire.Start) *session {
	if start.Term == "" {
		start.Term = "xterm-256color"
	}
	if start.Cols == 0 && start.Rows == 0 {
		start.Cols, start.Rows = wire.DefaultCols, wire.DefaultRows
	}
	size := clampSize(max(start.Cols, 0), max(start.Rows, 0))
	start.Cols, start.Rows = size.Cols, size.Rows
	s := &session{
		set: set, name: name, start: start, created: time.Now(),
		starting: make(chan struct{}, 1), ready: make(chan struct{}),
		size:    size,
		parties: parties{all: make(map[*party]bool), gone: make(map[string]*party)},
		calls:   make(map[*call]bool),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.track = track.New(s.created)
	s.keyboard.s = s
	s.waiters.s, s.answers.s, s.parties.s, s.private.s, s.events.s, s.ops.s = s, s, s, s, s, s
	s.writer = writer{s: s, sem: make(chan struct{}, 1)}
	s.display.init(s)
	return s
}

// fireLocked wakes all waiters for a change.
func (s *session) fireLocked() {
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// changedLocked returns a channel that is closed at the next change.
func (s *session) changedLocked() <-chan struct{} {
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake
}

// until waits until cond, which it calls with mu held, is true. It returns the cause of ctx or
// errClosed if that is first.
func (s *session) until(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		if cond() {
			s.mu.Unlock()
			return nil
		}
		changed := s.changedLocked()
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.ctx.Done():
			return errClosed
		}
	}
}

// without reports whether a layer of evidence is disabled for the session.
func (s *session) without(layer wire.Basis) bool { return slices.Contains(s.start.Without, layer) }

// isShell reports whether the session runs the sandbox's shell and not a program.
func (s *session) isShell() bool { return len(s.start.Argv) == 0 }

// aliveLocked reports whether there is a terminal whose process has not ended.
func (s *session) aliveLocked() bool {
	return !s.closed && s.console != nil && s.track.Phase() != wire.PhaseDead
}

// alive reports whether the session has a terminal, or will have one soon.
func (s *session) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && s.track.Phase() != wire.PhaseDead
}

// deadSince returns the end of a dead session in milliseconds of Unix time. dead is false if it is
// alive or must be kept.
func (s *session) deadSince() (unixMilli int64, dead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.track.Last().SinceUnix, s.track.Phase() == wire.PhaseDead && !s.kept && !s.closed
}

// end ends the session with its processes, streams and calls. It returns when the processes have
// ended.
func (s *session) end(reason string) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	if c := s.console; c != nil && len(c.stack.all) > 1 {
		c.stack.leaveLocked(c.stack.own(), nil, wire.Dead)
	}
	s.reportLocked(s.console, s.track.Close(reason, s.momentLocked(s.console)))
	s.sealed = s.keyboard.Private() != nil
	s.keyboard.applyLocked(s.keyboard.EndPrivate(nil))
	ended := s.track.Last()
	s.events.emitLocked(wire.Event{Kind: wire.EventEnded, State: &ended, Text: reason})
	if s.keyboard.idle != nil {
		s.keyboard.idle.Stop()
	}
	for _, p := range s.parties.gone {
		p.grace.Stop()
	}
	consoles := append([]*console(nil), s.past...)
	if s.console != nil {
		consoles = append(consoles, s.console)
	}
	s.past = nil
	s.fireLocked()
	s.mu.Unlock()

	// Calls see the dead state before their context ends, and return it as a result.
	for _, c := range consoles {
		c.close()
	}
	s.cancel(errClosed)
	s.log.close()
	s.wg.Wait()
}

// info returns the session for a list, with the last known state.
func (s *session) info() wire.SessionInfo {
	end := s.log.shown()
	alt, last := s.display.glance()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stateLocked()
	st.AltScreen, st.LastLine = alt, last
	return wire.SessionInfo{
		Private:  s.private.byLocked(),
		Name:     s.name,
		State:    st,
		Keyboard: s.keyboard.String(),
		Cols:     s.size.Cols,
		Rows:     s.size.Rows,
		Parties:  s.parties.listLocked(),
		Argv:     s.start.Argv,
		Created:  s.created.UnixMilli(),
		Offset:   end,
	}
}

// spawn runs f in a goroutine that end waits for.
func (s *session) spawn(f func()) { s.wg.Go(f) }
