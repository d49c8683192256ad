package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A program that listens beside its work is at rest when it is quiet: that is a guess, and a wrong
// one for those that move something on the screen while they ask, and for those that pause while
// they work. What a program says of itself goes before it (screen.Status). It is as good as the
// program's word: for attention, and never for a phase.

const (
	// saidTime is how long a program that has said that it is at rest must be quiet: it says so
	// before it has drawn all. Codex shows its question a second later, and moves something until
	// then. Claude Code shows its own after 0.4 s and is quiet for most of that, so one that says
	// that it asks is believed when restTime has gone by, too.
	saidTime = 300 * time.Millisecond
	// moveTime is how long it may go on to move something.
	moveTime = 2 * time.Second
	// doubtTime is how long a program that says that it works may be quiet and be believed. All
	// that say so move something.
	doubtTime = 30 * time.Second
	// StirTime is how long a listener may do something else, and still be one.
	StirTime = 200 * time.Millisecond
	// AskTime is how long a program may take to be seen asking, once an answer to it is there: one
	// that listens counts as asking when it has come to rest.
	AskTime = restTime + 300*time.Millisecond
)

// Statement is what a program said of itself, and when. The zero value is none.
type Statement struct {
	Status screen.Status
	Count  uint64 // of statements so far
	At     uint64 // offset in the log, behind the output that said so
	When   time.Time
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

// rests reports whether the program that was found listening has come to rest.
func (t *judge) rests() bool {
	l := t.l
	said, f := l.Said, l.Facts
	if t.opt.NoScreen {
		said = Statement{}
	}
	if t.speaker.count != said.Count {
		t.speaker = speaker{count: said.Count, group: f.Foreground}
	}
	if t.speaker.group != f.Foreground || said.At <= t.overAt {
		said = Statement{} // of a program that is gone
	}
	now := t.at.Time
	quiet, typed, when := t.Quiet(now), now.Sub(t.typed), now.Sub(said.When)
	switch {
	case l.Calls > t.called:
		return true
	case said.Status == screen.StatusWorking:
		return quiet >= doubtTime
	case said.Status == screen.StatusBlocked && when < restTime:
		return false
	case said.Status != "":
		// It may have begun to work on what was typed since, and not have said so yet.
		current := said.When.After(t.typed) || typed >= restTime
		return quiet >= saidTime && current || min(when, typed) >= moveTime
	}
	return quiet >= restTime || f.OnlyTimers && f.Want == wire.WantLine && quiet >= idleReader
}

// stirs reports whether the program that was found doing something is one that listens, and of
// which a thread stirs: a collector, a timer.
func (t *judge) stirs(f Facts) bool {
	return t.state.Listens && f.Foreground == t.listener.group &&
		t.at.Time.Sub(t.listener.at) < StirTime
}
