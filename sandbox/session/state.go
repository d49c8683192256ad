package session

import (
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// promptPatience is how long the end of a prompt is waited for: a shell whose user took our part out of PS1 never prints
// that mark.
const promptPatience = 50 * time.Millisecond

// promptTries is how many times that a shell which does not read yet is given: it is busy with its prompt, or the machine is.
const promptTries = 40

// takenTime is how long a shell at its prompt that nobody can look at is given to take a command: other lines may have been typed
// before it.
const takenTime = 500 * time.Millisecond

// stateLocked is the present state with what changes by the clock.
func (s *session) stateLocked() wire.State {
	st := s.state
	st.QuietMS = max(time.Since(s.lastByte).Milliseconds(), 0)
	st.Basis = slices.Clone(st.Basis)
	if st.Basis == nil {
		st.Basis = []wire.Basis{}
	}
	if st.Cwd == "" {
		st.Cwd = s.cwd
	}
	if c := s.console; c != nil && c.forged && !slices.Contains(st.Disputed, wire.BasisMark) {
		st.Disputed = append(slices.Clone(st.Disputed), wire.BasisMark)
	}
	s.veilLocked(&st)
	return st
}

// setStateLocked makes st the state from here on, and tells.
func (s *session) setStateLocked(st wire.State) { s.emitLocked(s.becomeLocked(st)) }

// becomeLocked makes st the state from here on, and returns the event that tells it.
func (s *session) becomeLocked(st wire.State) wire.Event {
	if st.Offset == 0 {
		_, st.Offset = s.log.bounds()
	}
	st.SinceUnix = time.Now().UnixMilli()
	s.state = st
	told := s.stateLocked()
	return wire.Event{Kind: wire.EventState, State: &told, Offset: st.Offset}
}

// markedLocked takes a mark of the shell. All output before it is in the log.
func (s *session) markedLocked(c *console, m marks.Mark) {
	if c != s.console || s.state.Phase == wire.PhaseDead {
		return
	}
	_, end := s.log.bounds()
	switch m.Kind {
	case marks.CommandStart:
		s.commandStartsLocked(c, m, end)
	case marks.CommandEnd:
		s.lastExit = &m.Exit
		c.tellTypedLocked()
		c.over, c.overAt, c.ranTo = c.prompted+1, end, end
		if cmd := s.command; cmd != nil && cmd.started && !cmd.ended {
			s.overLocked(cmd, end)
		}
	case marks.Refused:
		c.phase = wire.PhasePrompt
		if cmd := s.command; cmd != nil && !cmd.started {
			cmd.unfinished = true
		}
		if c.echo != nil {
			s.log.append(c.endEchoLocked().output())
		}
		c.takeBack()
		s.readyLocked(c.basisLocked())
	case marks.Unread:
		if cmd := s.command; cmd != nil && !cmd.started {
			cmd.unread = true
		}
	case marks.PromptStart:
		s.promptStartsLocked(c, m, end)
	case marks.PromptEnd:
		c.editing, c.editAt, c.promptTo = true, end, end
		if cmd := s.command; cmd != nil && !cmd.started && !c.expecting {
			s.fireLocked()
			return // late, of the prompt that was taken for complete and at which the command was handed over
		}
		c.promptLocked()
	case marks.PromptAgain:
		if c.echo != nil {
			c.echo.dropPrompt() // of the command that is being given, which it stood before
		}
		if c.editAt != 0 {
			c.editAt = end
		}
		if ours, _ := c.inFront(); ours && c.doubt && c.phase == wire.PhasePrompt {
			s.readyLocked(c.basisLocked()) // the shell says it now, after a program that forged it
		}
	case marks.Continuation:
		c.phase = wire.PhaseContinuation
		c.continued++
		s.setStateLocked(wire.State{Phase: wire.PhaseContinuation, Basis: c.basisLocked()})
	}
}

// commandStartsLocked takes the mark before a command that runs: the one that was handed over, the one that was typed, or the shell's
// own that a key begins.
func (s *session) commandStartsLocked(c *console, m marks.Mark, end uint64) {
	c.phase, c.typist = wire.PhaseRunning, nil
	if e := c.echo; e != nil && c.marks.Key && !m.Run {
		// The shell has seen the key. What was printed up to now is others' output.
		e.dropLine()
		s.log.append(e.bytes)
		e.bytes, e.typed, e.own = nil, []byte(c.marks.Shown), c.marks.Shown == ""
		return
	}
	c.began = true
	if cmd := s.command; m.Run && cmd != nil && !cmd.started && cmd.number == m.Number {
		if c.marks.Key {
			c.takeBack()
		}
		cmd.started, cmd.from = true, end
		if c.echo != nil {
			cmd.from = s.log.append(c.endEchoLocked().output())
		}
		c.since = cmd.from
		s.emitLocked(wire.Event{Kind: wire.EventBegun, Offset: cmd.from, Op: cmd.op, By: cmd.by})
		return
	}
	if s.command == nil {
		c.typing = true
		s.emitLocked(wire.Event{Kind: wire.EventBegun, By: s.keyboard.String()})
	}
	s.typedLocked(c, end)
	if s.command == nil && s.state.Phase != wire.PhaseRunning {
		s.setStateLocked(wire.State{Phase: wire.PhaseRunning, Basis: []wire.Basis{wire.BasisMark}})
	}
}

// promptStartsLocked takes the mark before a prompt: whatever ran is over.
func (s *session) promptStartsLocked(c *console, m marks.Mark, end uint64) {
	if dir := c.dotDir; dir != "" { // the shell has found its script
		c.dotDir = ""
		s.spawn(func() { c.dropDotDir(dir) })
	}
	c.editing, c.promptFrom, c.since, c.typist = false, end, end, nil
	if c.began || !c.marks.Typed {
		c.began = false
		c.concluded++
	}
	s.typedOverLocked(c, m.Exit)
	s.lastExit = &m.Exit
	c.tellTypedLocked()
	if m.Cwd != "" {
		s.cwd = m.Cwd
	}
	if c.over != c.prompted+1 { // an empty line ends without having begun
		c.over, c.overAt = c.prompted+1, end
	}
	switch cmd := s.command; {
	case cmd == nil || cmd.ended:
	case cmd.started:
		s.overLocked(cmd, end)
	case cmd.line != nil: // what was typed for it may still be queued: another line ran
		cmd.from, cmd.to = end, end
		if c.echo != nil {
			cmd.to = s.log.append(c.endEchoLocked().output())
		}
		c.beginEchoLocked(cmd.line, "")
	}
	c.expectPromptLocked()
}

// overLocked notes where a command's output ends. It tells at once: who passes the output on as it comes must not find the
// prompt in it.
func (s *session) overLocked(cmd *command, end uint64) {
	cmd.ended, cmd.to = true, end
	if cmd.started {
		s.emitLocked(wire.Event{Kind: wire.EventOver, Offset: end, Op: cmd.op, By: cmd.by})
	}
}

// tellTypedLocked tells that a command which was typed is over.
func (c *console) tellTypedLocked() {
	if c.typing {
		c.typing = false
		c.s.emitLocked(wire.Event{Kind: wire.EventOver, ExitCode: c.s.lastExit})
	}
}

// expectPromptLocked takes the prompt for complete when the shell reads and the mark of its end does not come. Earlier would
// be wrong: a line that is typed before the shell has set its terminal up is echoed twice.
func (c *console) expectPromptLocked() {
	n, tries := c.prompted, 0
	c.expecting = true
	var timer *time.Timer
	timer = time.AfterFunc(promptPatience, func() {
		busy := c.busy()
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if c != c.s.console || c.prompted != n || c.phase != wire.PhaseRunning || c.s.state.Phase == wire.PhaseDead {
			return
		}
		if tries++; busy && tries < promptTries {
			timer.Reset(promptPatience)
			return
		}
		c.promptLocked()
	})
	c.prompting = timer
}

// busy reports whether the shell is known not to read its terminal, or what it printed before it read has not come out of it: this process may have
// had no processor since.
func (c *console) busy() bool {
	if c.local == nil {
		return false
	}
	facts, err := c.s.probe(c.s.ctx, c)
	return err == nil && facts.ShellIsForeground && (!facts.Blocked || c.unread())
}

// promptLocked is the moment at which the shell is ready for a command, by its mark. It counts only if the shell's own
// group has the terminal, which a program in front of it cannot arrange.
func (c *console) promptLocked() {
	if c.prompting != nil {
		c.prompting.Stop()
		c.prompting = nil
	}
	c.phase = wire.PhasePrompt
	c.expecting = false
	c.prompted++
	if ours, known := c.inFront(); known && !ours {
		c.doubt = true
		c.s.state.Disputed = []wire.Basis{wire.BasisMark}
		c.s.fireLocked()
		return
	}
	if cmd := c.s.command; cmd != nil && !cmd.started && !cmd.unread {
		c.awaitTakenLocked(cmd)
		return
	}
	c.s.readyLocked(c.basisLocked())
}

// awaitTakenLocked leaves it open at a prompt whether the shell will take cmd, whose line may be queued behind others: whoever
// looks at the shell finds it reading when nothing is queued any more. Where nobody can, time has to do.
func (c *console) awaitTakenLocked(cmd *command) {
	c.s.fireLocked()
	if _, known := c.inFront(); known && c.s.set.opt.Prober != nil {
		return
	}
	n := c.prompted
	time.AfterFunc(takenTime, func() {
		c.s.mu.Lock()
		defer c.s.mu.Unlock()
		if c.s.command == cmd && !cmd.started && c == c.s.console && c.prompted == n && c.phase == wire.PhasePrompt {
			cmd.unsure = true
			c.s.readyLocked(c.basisLocked())
		}
	})
}

// basisLocked is what a mark that has just come stands on.
func (c *console) basisLocked() []wire.Basis {
	if ours, _ := c.inFront(); ours {
		return []wire.Basis{wire.BasisProcess, wire.BasisMark}
	}
	return []wire.Basis{wire.BasisMark}
}

// readyLocked makes the state prompt: what ran is over.
func (s *session) readyLocked(basis []wire.Basis) {
	s.console.doubt = false
	if cmd := s.command; cmd != nil {
		s.command = nil
		cmd.over, cmd.exit = true, s.lastExit
		why := wire.Done
		if !cmd.started {
			if why, cmd.exit = wire.Refused, nil; cmd.unsure {
				why = wire.Lost
			}
			s.giveUpLocked(s.console, cmd)
		}
		s.emitLocked(wire.Event{Kind: wire.EventResult, Op: cmd.op, By: cmd.by, ExitCode: cmd.exit, Why: why})
	}
	s.setStateLocked(wire.State{Phase: wire.PhasePrompt, ExitCode: s.lastExit, Cwd: s.cwd, Basis: basis})
	s.keyboardAtPromptLocked()
}

// giveUpLocked sees to it that a command which was not taken will not be.
func (s *session) giveUpLocked(c *console, cmd *command) {
	if cmd.line == nil {
		return
	}
	c.takeBack()
	if !cmd.ended && cmd.to == 0 {
		_, cmd.from = s.log.bounds()
		cmd.to = cmd.from
	}
	if c.echo != nil {
		s.log.append(c.endEchoLocked().bytes)
	}
	cmd.ended = true
}

// died makes the state dead by exit, if c is the present terminal. All its output is in the log, or was waited for long
// enough.
func (s *session) died(c *console, exit Exit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.flushLocked()
	if c != s.console || s.state.Phase == wire.PhaseDead {
		return
	}
	c.end = exit
	st := wire.State{Phase: wire.PhaseDead, Signal: exit.Signal, Reason: exit.Reason, Cwd: s.cwd, Basis: []wire.Basis{wire.BasisExit}}
	var code *int
	if exit.Signal == "" {
		code = &exit.Code
	}
	st.ExitCode = code
	if cmd := s.command; cmd != nil {
		s.command = nil
		_, end := s.log.bounds()
		if !cmd.started {
			cmd.from = end
		}
		if !cmd.ended {
			s.overLocked(cmd, end)
		}
		s.emitLocked(wire.Event{Kind: wire.EventResult, Op: cmd.op, By: cmd.by, ExitCode: code, Why: wire.Dead})
	}
	s.setStateLocked(st)
	told := s.stateLocked()
	s.emitLocked(wire.Event{Kind: wire.EventEnded, State: &told})
	s.keyboardAtPromptLocked()
}
