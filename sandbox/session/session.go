// Package session shares one terminal among an agent and any number of people. It owns the
// terminal's log by offset, its keyboard, its size and its state, runs commands in its shell, and
// serves all of that as a stream of frames.
//
// It lives next to the terminal: in the guest, or in the daemon for a machine that has no guest. It
// knows nothing of SSH, containers or HTTP; a terminal and the means to look at its processes are
// given to it ([Terminal], [Prober]).
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

// errClosed is the cause with which what belongs to a closed session ends.
var errClosed = errors.New("session closed")

// session is one terminal by name. Terminals may come and go on it – a shell that ended is replaced
// by the next run – while its log goes on.
//
// Locks: mu before log.mu, display.mu and stream.mu. Nothing that can wait is done under it; what
// is asked of the terminal are the system calls for its foreground group, its size and its write
// deadline. What writes to the terminal holds the semaphore of writer, which is taken before mu.
type session struct {
	set     *Set
	name    string
	start   wire.Start // as asked for, with defaults filled in
	created time.Time

	log     log
	display display
	writer  writer

	starting chan struct{} // semaphore of who starts a terminal
	ready    chan struct{} // closed when the first start is over
	startErr *wire.Error   // of the first start; valid after ready

	wg     sync.WaitGroup  // every goroutine of the session
	ctx    context.Context //nolint:containedctx // the session's own life, which no call bounds
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	console  *console       // guarded by mu; the present terminal; nil before the first start
	past     []*console     // guarded by mu; terminals whose shell ended while other processes still hold them
	track    *track.Tracker // guarded by mu; what the present terminal does
	revived  bool           // guarded by mu; an attach started the shell again, and no run has said so yet
	size     keyboard.Size  // guarded by mu; of the terminal
	events   events         // guarded by mu
	wake     chan struct{}  // guarded by mu; closed when anything under mu that somebody waits for has changed
	parties  parties        // guarded by mu
	keyboard driver         // guarded by mu
	private  private        // guarded by mu
	answers  answers        // guarded by mu; to queries
	commands uint64         // guarded by mu; number of the newest run
	calls    map[*call]bool // guarded by mu; calls under way
	stopping int            // guarded by mu; interrupts under way
	ops      ops            // guarded by mu
	waiters  waiters        // guarded by mu; for whom the prober looks
	closed   bool           // guarded by mu
	kept     bool           // guarded by mu; stays in the set when it is dead
	sealed   bool           // guarded by mu; closed in private mode: what its terminals still print is nobody's
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

// fireLocked wakes everybody who waits for a change.
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

// until waits until cond, which is called with mu held, is true. It returns ctx's cause or
// errClosed when that comes first.
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

// without reports whether a layer of evidence was switched off for the session.
func (s *session) without(layer wire.Basis) bool { return slices.Contains(s.start.Without, layer) }

// isShell reports whether the session is the sandbox's shell and not a program of its own.
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

// deadSince returns since when the session is dead, in milliseconds of Unix time; false if it lives
// or is kept all the same.
func (s *session) deadSince() (unixMilli int64, dead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.track.Last().SinceUnix, s.track.Phase() == wire.PhaseDead && !s.kept && !s.closed
}

// end ends the session: its processes, its streams and its calls. It returns when the processes are
// gone.
func (s *session) end(reason string) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
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

	// Calls see the end before their context ends, so that they return it as a result.
	for _, c := range consoles {
		c.close()
	}
	s.cancel(errClosed)
	s.log.close()
	s.wg.Wait()
}

// info is the session's line in a list: the last known state, without looking.
func (s *session) info() wire.SessionInfo {
	end := s.log.shown()
	alt, last := s.display.glance()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stateLocked()
	st.AltScreen, st.LastLine = alt, last
	return wire.SessionInfo{Private: s.private.byLocked(), Name: s.name, State: st, Keyboard: s.keyboard.String(), Cols: s.size.Cols, Rows: s.size.Rows,
		Parties: s.parties.listLocked(), Argv: s.start.Argv, Created: s.created.UnixMilli(), Offset: end}
}

// spawn runs f as a goroutine of the session, which end waits for.
func (s *session) spawn(f func()) { s.wg.Go(f) }
