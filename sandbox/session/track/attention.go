package track

import (
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/screen"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A program that listens while it works counts as at rest when it is quiet. That is a guess. It
// fails for programs that animate the screen while they ask, and for programs that pause while they
// work. A program's statement about itself (screen.Status) takes precedence. It is only a claim, so
// it sets attention and never a phase.

const (
	// saidTime is how long a program that says it is at rest must be quiet, because it says so
	// before it has drawn everything. Codex shows its question a second later, and animates the
	// screen until then. Claude Code shows its question after 0.4 s and is quiet for most of that.
	// So a program that says it asks must also have said so restTime ago.
	saidTime = 300 * time.Millisecond
	// moveTime is the time after which a program that says it is at rest counts as such even if it
	// still animates the screen.
	moveTime = 2 * time.Second
	// doubtTime is how long a program may be quiet that says it works, or that shows no character
	// on the alternate screen. All programs that say so animate the screen. opencode loads for 8 s
	// and more before it draws.
	doubtTime = 30 * time.Second
	// workTime is how long a look that found a program busy counts. Looks are less than a second
	// apart, and more on a machine that is too busy.
	workTime = 10 * time.Second
	// silentWork is how long work without output delays rest. A program that asks may also work now
	// and then, such as for a garbage collector or a server that it started.
	silentWork = 5 * time.Second
	// StirTime is how long a listening program may do something else and still count as listening.
	StirTime = 200 * time.Millisecond
	// AskTime is how long a look may take to find a program asking for input that is already there.
	// A program that listens counts as asking only when it is at rest.
	AskTime = restTime + 300*time.Millisecond
)

// Statement is what a program said about itself, and when. The zero value is no statement.
type Statement struct {
	Status screen.Status
	Count  uint64 // number of statements so far
	At     uint64 // log offset after the output that made the statement
	When   time.Time
}

// speaker is the program that made a statement: the foreground group when a look first saw the
// statement.
type speaker struct {
	count uint64 // number of the statement
	group int
}

// listener is the group that a look last found listening.
type listener struct {
	group  int
	at     time.Time
	since  time.Time // the first such look after one that found it busy
	rested uint64    // epoch in which it was at rest, plus 1; 0 for never
}

// worker is the group that a look last found busy.
type worker struct {
	group int
	at    time.Time
}

// listens records that a look found the group listening.
func (t *judge) listens(group int) {
	l, now := &t.listener, t.at.Time
	switch {
	case group == l.group && (t.state.Listens || l.rested == t.Epoch()+1):
		// A program at rest that does something without output is at rest again afterwards.
	case group == t.worker.group && now.Sub(t.worker.at) < workTime:
		*l = listener{group: group, since: now}
	default:
		*l = listener{group: group}
	}
	l.at = now
}

// rests reports whether the listening program is at rest.
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
		said = Statement{} // of a program that has ended
	}
	now := t.at.Time
	quiet, typed, when := t.Quiet(now), now.Sub(t.typed), now.Sub(said.When)
	switch {
	case l.Calls > t.called:
		return true
	case said.Status == screen.StatusWorking, l.Blank && said.Status == "" && !t.opt.NoScreen:
		return quiet >= doubtTime
	}
	if quiet < silentWork { // a program that was busy until now has not been at rest
		quiet = min(quiet, now.Sub(t.listener.since))
	}
	switch {
	case said.Status == screen.StatusBlocked && when < restTime:
		return false
	case said.Status != "":
		// The program may have started to work on the last input without saying so yet.
		current := said.When.After(t.typed) || typed >= restTime
		return quiet >= saidTime && current || min(when, typed) >= moveTime
	}
	return quiet >= restTime || f.OnlyTimers && f.Want == wire.WantLine && quiet >= idleReader
}

// stirs reports whether the busy program is one that was just found listening. One of its threads
// runs briefly, such as a garbage collector or a timer.
func (t *judge) stirs(f Facts) bool {
	return t.state.Listens && f.Foreground == t.listener.group &&
		t.at.Time.Sub(t.listener.at) < StirTime
}
