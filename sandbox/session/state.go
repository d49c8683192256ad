package session

import (
	"encoding/json"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// stateLocked returns the current state without private content.
func (s *session) stateLocked() wire.State {
	st := s.track.State(time.Now())
	s.private.veilLocked(&st)
	return st
}

// trace returns what the state was judged by, as JSON. In private mode, it is an error.
func (s *session) trace() ([]byte, error) {
	s.mu.Lock()
	if s.keyboard.Private() != nil {
		s.mu.Unlock()
		return nil, errPrivate
	}
	now := time.Now()
	trace, recent := s.track.Trace(now), s.track.Recent(now)
	s.mu.Unlock()
	data, err := json.Marshal(trace)
	if err == nil && len(data) > maxTrace {
		data, err = json.Marshal(recent)
	}
	return data, err
}

// maxTrace is the maximal length of a trace in a reply.
const maxTrace = wire.MaxFrame - 1<<10

// momentLocked returns the current moment for an observation of the terminal c, which may be nil.
func (s *session) momentLocked(c *console) track.Moment {
	_, end := s.log.bounds()
	m := track.Moment{Time: time.Now(), End: end}
	if c != nil && c.echo != nil {
		m.Held = uint64(len(c.echo.bytes))
	}
	return m
}

// reportLocked applies and reports the changes of an observation of the terminal c.
func (s *session) reportLocked(c *console, n track.News) {
	if n.GaveUp {
		c.giveUpLocked()
	}
	for _, ev := range n.Events {
		if ev.State != nil {
			s.private.veilLocked(ev.State)
		}
		if ev.Kind == wire.EventBegun && ev.By == "" { // of a typed command
			ev.By = s.keyboard.String()
		}
		s.events.emitLocked(ev)
	}
	if n.Changed {
		s.fireLocked()
	}
	if c != nil {
		c.tickLaterLocked()
	}
	if n.Rests {
		s.keyboard.atPromptLocked()
	}
}

// markedLocked handles a mark of the shell. All output before it is in the log.
func (c *console) markedLocked(m marks.Mark) {
	s := c.s
	if c != s.console || s.track.Phase() == wire.PhaseDead {
		return
	}
	_, end := s.log.bounds()
	switch m.Kind {
	case marks.Ready:
		c.answered = m.Shell
		s.fireLocked()
		return
	case marks.CommandStart:
		if c.commandStartsLocked(m, end) {
			return
		}
	case marks.Refused:
		if c.echo != nil {
			s.log.append(c.endEchoLocked().output())
		}
		c.takeBack()
	case marks.PromptStart:
		if dir := c.dotDir; dir != "" { // the shell has read its script
			c.dotDir = ""
			s.spawn(func() { c.dropDotDir(dir) })
		}
		if c.entering {
			c.entering = false
			if c.echo != nil {
				s.log.append(append(c.endEchoLocked().output(), "\r\n"...))
				_, end = s.log.bounds()
			}
		}
		c.promptFrom, c.typist = end, nil
		c.typedOverLocked(m.Exit)
	case marks.PromptEnd:
		c.editAt, c.promptTo = end, end
		if sh := c.shell; c.local != nil && !sh.learned {
			sh.learned = true
			s.spawn(func() { c.stack.learn(sh) })
		}
	case marks.PromptAgain:
		if c.echo != nil {
			c.echo.dropPrompt() // the prompt before the command
		}
		if c.editAt != 0 {
			c.editAt = end
		}
	}
	s.reportLocked(c, c.track.Mark(m, c.frontFor(m), s.momentLocked(c)))
	if m.Kind == marks.PromptStart {
		c.echoAgainLocked()
	}
}

// commandStartsLocked handles the echo before the mark of a started command. It reports whether a
// key began the command.
func (c *console) commandStartsLocked(m marks.Mark, end uint64) (key bool) {
	c.typist = nil
	e := c.echo
	switch {
	case e != nil && c.marks.Key && !m.Run:
		// The shell has received the key. Output up to now is of other programs.
		c.track.Key()
		e.dropLine()
		c.s.log.append(e.bytes)
		e.bytes, e.typed, e.own = nil, []byte(c.marks.Shown), c.marks.Shown == ""
		return true
	case !c.track.Starts(m):
		c.typedLocked(end)
		return false
	}
	if c.marks.Key {
		c.takeBack()
	}
	if e != nil {
		c.s.log.append(c.endEchoLocked().output())
	}
	return false
}

// echoAgainLocked expects the echo of a command's line at the next prompt, if another line ran
// first.
func (c *console) echoAgainLocked() {
	cmd := c.track.Command()
	if cmd == nil || cmd.Started || cmd.Ended || cmd.Line == nil {
		return
	}
	if c.echo != nil {
		cmd.To = c.s.log.append(c.endEchoLocked().output())
	}
	c.beginEchoLocked(cmd.Line, "")
}

// giveUpLocked withdraws a command that the shell has not accepted.
func (c *console) giveUpLocked() {
	c.takeBack()
	if c.echo != nil {
		c.s.log.append(c.endEchoLocked().bytes)
	}
}

// tickLaterLocked starts a timer for the next tick of the tracker.
func (c *console) tickLaterLocked() {
	due := c.track.Due()
	if due.Equal(c.due) {
		return
	}
	c.due = due
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !due.IsZero() {
		c.timer = time.AfterFunc(time.Until(due), c.tick)
	}
}

// tick updates the tracker.
func (c *console) tick() {
	s := c.s
	s.mu.Lock()
	expecting := c == s.console && c.track.Expecting()
	s.mu.Unlock()
	busy := expecting && c.busy()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c == s.console {
		s.reportLocked(c, c.track.Tick(busy, c.front(), s.momentLocked(c)))
	}
}

// busy reports whether the shell does not read its terminal, or its output is not in the log yet.
func (c *console) busy() bool {
	if c.local == nil {
		return false
	}
	facts, err := c.s.probe(c.s.ctx, c)
	return err == nil && facts.ShellIsForeground && (!facts.Blocked || c.unread())
}

// front returns the foreground. It is unknown without process evidence.
func (c *console) front() track.Front {
	if c.local == nil || c.relayed || c.s.without(wire.BasisProcess) {
		return track.Front{} // a relay has the terminal, whatever runs behind it
	}
	has, err := c.stack.hasTerminal(c.shell)
	return track.Front{Shell: err == nil && has, Known: err == nil}
}

// frontFor is front, for marks whose state depends on it.
func (c *console) frontFor(m marks.Mark) track.Front {
	switch m.Kind {
	case marks.Refused, marks.PromptEnd, marks.PromptAgain, marks.Continuation:
		return c.front()
	}
	return track.Front{}
}

// died sets the state dead with exit, if c is the current terminal. Its output is in the log, or
// the wait for it has timed out.
func (c *console) died(exit Exit) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	c.flushLocked()
	if c != s.console || s.track.Phase() == wire.PhaseDead {
		return
	}
	c.end = exit
	var code *int
	if exit.Signal == "" {
		code = &exit.Code
	}
	if all := c.stack.all; len(all) > 1 {
		var inside *int
		if all[1].process.Pid == c.local.TTY().SessionPID { // it had replaced the session's own
			inside = code
		}
		c.stack.leaveLocked(all[0], inside, wire.Dead)
	}
	s.reportLocked(c, c.track.Exit(code, exit.Signal, exit.Reason, s.momentLocked(c)))
}
