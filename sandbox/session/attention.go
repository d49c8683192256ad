package session

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A program that listens beside its work is at rest when it is quiet: that is a guess, and a wrong one for those that move
// something on the screen while they ask, and for those that pause while they work. What a program says of itself goes
// before it (screen.Status). It is as good as the program's word: for attention, and never for a phase.

const (
	// saidTime is how long a program that has said that it is at rest must be quiet: it says so before it has drawn all. Codex
	// shows its question a second later, and moves something until then. Claude Code shows its own 0.38 s to 0.43 s later and is quiet for most of
	// that, so one that says that it asks is believed when restTime has gone by, too.
	saidTime = 300 * time.Millisecond
	// moveTime is how long it may go on to move something.
	moveTime = 2 * time.Second
	// doubtTime is how long a program that says that it works may be quiet and be believed. All that say so move something.
	doubtTime = 30 * time.Second
	// stirTime is how long a listener may do something else, and still be one.
	stirTime = 200 * time.Millisecond
)

// statement is what a program said of itself, and when. The zero value is none.
type statement struct {
	status screen.Status
	count  uint64
	at     uint64 // offset in the log, behind the output that said so
	when   time.Time
}

// speaker is who made a statement: the group that was in the foreground when it was first seen.
type speaker struct {
	count uint64 // of the statement
	group int
}

// listener is who was last found listening.
type listener struct {
	group int
	at    time.Time
}

// restsLocked reports whether the program that f found listening has come to rest, after quiet without output or input.
func (s *session) restsLocked(c *console, f Facts, quiet time.Duration) bool {
	var said statement
	if p := s.display.said.Load(); p != nil && !s.without(wire.BasisScreen) {
		said = *p
	}
	if s.speaker.count != said.count {
		s.speaker = speaker{count: said.count, group: f.Foreground}
	}
	if s.speaker.group != f.Foreground || said.at <= c.overAt {
		said = statement{} // of a program that is gone
	}
	switch {
	case s.display.calls.Load() > s.called:
		return true
	case said.status == screen.StatusWorking:
		return quiet >= doubtTime
	case said.status != "":
		// It may have begun to work on what was typed since, and not have said so yet.
		typed := time.Since(s.inputAt)
		if said.status == screen.StatusBlocked && time.Since(said.when) < restTime {
			return false
		}
		return quiet >= saidTime && (said.when.After(s.inputAt) || typed >= restTime) || min(time.Since(said.when), typed) >= moveTime
	}
	return quiet >= restTime || f.OnlyTimers && f.Want == wire.WantLine && quiet >= idleReader
}

// stirsLocked reports whether the program that f found doing something is one that listens, and of which a thread stirs: a
// collector, a timer.
func (s *session) stirsLocked(f Facts) bool {
	return s.state.Listens && f.Foreground == s.listener.group && time.Since(s.listener.at) < stirTime
}
