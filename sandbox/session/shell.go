package session

import (
	"slices"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/marks"
	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// shell is a shell on a terminal: the session's own, or one that was started in it and entered. Its
// fields are guarded by session.mu.
type shell struct {
	kind    string      // name, such as bash
	process *wire.Shell // nil for the session's own
	group   int         // foreground group when it was found; 0 for the session's own

	commands *commandFile // from which it reads commands; nil for none
	marks    marks.Integration
	marked   bool          // the shell prints marks
	parser   *marks.Parser // nil unless marked
	forged   bool          // another program prints marks, and the log reports it

	image    uint64 // as PromptShell.Image; 0 for the session's own
	learned  bool   // it is known, or being found out, which program it is
	entering bool   // it has not printed its first prompt with marks yet
	relayed  bool   // it is behind a relay, which process is about; commands are typed
	answered string // of a relayed one: its name, from its Ready mark

	// log offset of the end of the current prompt, also if it was redrawn; 0 after input
	editAt     uint64
	promptFrom uint64 // log offset of the start of the current prompt
	promptTo   uint64 // log offset of its end when it was first drawn
	typist     *party // party that last typed at the current prompt
	ahead      ahead  // type-ahead that may appear at the next prompt
	handed     bool   // the newest command of the handover runs
	echo       *echo  // echo that is being dropped; nil if none

	track *track.Tracker // state of the shell; set when its terminal becomes the session's
	due   time.Time      // next tick of track
	timer *time.Timer    // timer of the tick; nil unless it runs
}

// shells are the shells of one terminal, each started in the one before: the session's own, and
// those that were entered. The last one is in front; console has its fields, too.
type shells struct {
	c   *console
	all []*shell // guarded by session.mu; set when the terminal becomes the session's
}

// integration returns how the shell in front was integrated, and whether it prints marks.
func (st *shells) integration() (marks.Integration, bool) {
	c := st.c
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.marks, c.marked
}

// withMarks reports whether the shell in front prints marks.
func (st *shells) withMarks() bool {
	_, marked := st.integration()
	return marked
}

// sourceLocked names what the shell in front reads commands from.
func (st *shells) sourceLocked() string {
	if c := st.c; c.process != nil && !c.relayed {
		return "its file in " + sharedMemory
	}
	return "its descriptor " + strconv.Itoa(marks.CommandFD)
}

// tty returns the terminal, with the shell in front as its leader.
func (st *shells) tty() TTY {
	c := st.c
	tty := c.local.TTY()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.process != nil {
		tty.Shell = c.process.Pid
	}
	return tty
}

// pid returns the process ID of the shell in front; 0 on another machine.
func (st *shells) pid() int {
	st.c.s.mu.Lock()
	defer st.c.s.mu.Unlock()
	return st.pidLocked()
}

func (st *shells) pidLocked() int {
	if p := st.c.process; p != nil {
		return p.Pid
	}
	if st.c.local == nil {
		return 0
	}
	return st.c.local.TTY().SessionPID
}

// hasTerminal reports whether the group of sh is in the foreground.
func (st *shells) hasTerminal(sh *shell) (bool, error) {
	c := st.c
	if sh.process != nil {
		return c.local.InFront(sh.process.Pid)
	}
	group, err := c.local.Front()
	return group == c.local.TTY().SessionPID, err
}

// learn finds out which program sh is, which has printed its first prompt.
func (st *shells) learn(sh *shell) {
	c := st.c
	facts, err := c.s.probe(c.s.ctx, c)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if err == nil && sh == c.shell {
		sh.track.Know(facts.ShellImage)
	}
}

// pids returns the process IDs of the session's own shell and of those in it.
func (st *shells) pids() []int {
	c := st.c
	pids := []int{c.local.TTY().SessionPID}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	for _, sh := range st.all {
		if sh.process != nil {
			pids = append(pids, sh.process.Pid)
		}
	}
	return pids
}

// leader returns the process group of the shell in front.
func (st *shells) leader() int {
	c := st.c
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return st.leaderLocked()
}

func (st *shells) leaderLocked() int {
	c := st.c
	if c.group != 0 {
		return c.group
	}
	return c.local.TTY().SessionPID
}

// feedLocked takes the marks of the shells out of output: first those of the session's own, then
// those of the shells in it. depth is the first shell that has not seen the output.
func (st *shells) feedLocked(depth int, p []byte) {
	c := st.c
	if depth >= len(st.all) {
		c.emitLocked(p)
		return
	}
	sh := st.all[depth]
	if sh.parser == nil {
		st.feedLocked(depth+1, p)
		return
	}
	out, ms := sh.parser.Parse(p)
	if sh.parser.Forged() && !sh.forged {
		sh.forged = true
		sh.track.Forge()
		c.s.set.log.Warn("the shell's marks contradict each other: a program forges them",
			"session", c.s.name)
		c.s.fireLocked()
	}
	at := 0
	for _, m := range ms {
		st.feedLocked(depth+1, out[at:m.At])
		at = m.At
		if sh != c.shell {
			st.flushParsersLocked(depth + 1)
		}
		if st.inFrontLocked(sh, m) {
			c.markedLocked(m)
		}
	}
	st.feedLocked(depth+1, out[at:])
}

// pendingLocked reports whether a parser holds back bytes that may begin a mark.
func (st *shells) pendingLocked() bool {
	for _, sh := range st.all {
		if sh.parser != nil && sh.parser.Pending() {
			return true
		}
	}
	return false
}

// flushParsersLocked makes the parsers from depth on check again what they hold back.
func (st *shells) flushParsersLocked(depth int) {
	for i := depth; i < len(st.all); i++ {
		if p := st.all[i].parser; p != nil && p.Pending() {
			st.feedLocked(i+1, p.Flush())
		}
	}
}

// inFrontLocked reports whether sh, which has printed m, is the shell in front. A prompt of a shell
// behind it shows that the ones in front have ended, or were stopped.
func (st *shells) inFrontLocked(sh *shell, m marks.Mark) bool {
	c := st.c
	if sh == c.shell {
		return true
	}
	if m.Kind != marks.CommandEnd && m.Kind != marks.PromptStart {
		return false
	}
	// A stopped shell on a terminal of its own still has that.
	front, err := st.hasTerminal(c.shell)
	if own, err2 := st.hasTerminal(sh); err == nil && err2 == nil && front && !own {
		return false // a program that knows the secret has printed it
	}
	st.leaveLocked(sh, &m.Exit, wire.Done)
	return true
}

// leaveLocked ends the shells in front of sh. exit is the exit code that sh has of the next one;
// nil if it is not known. why says how a command that runs in one ends.
func (st *shells) leaveLocked(sh *shell, exit *int, why wire.Ended) {
	c := st.c
	s := c.s
	for c.shell != sh {
		inner := c.shell
		for inner.parser != nil && inner.parser.Pending() {
			c.emitLocked(inner.parser.Flush())
		}
		if inner.echo != nil {
			s.log.append(c.endEchoLocked().output())
		}
		outer := st.all[len(st.all)-2]
		code := exit
		if outer != sh {
			code = nil
		}
		if inner.commands != nil {
			inner.commands.close()
		}
		news := inner.track.Leave(outer.track, code, why, s.momentLocked(c))
		inner.stopTicks()
		st.all, c.shell = st.all[:len(st.all)-1], outer
		c.ahead, c.handed = inner.ahead, c.handed || inner.handed
		s.track = c.track
		s.reportLocked(c, news)
	}
}

// holds reports whether the shell in front still is that, by facts about another process that reads
// the terminal. If not, it has ended, was stopped, or works in the background of a shell around it,
// and no mark has shown that; or its relay has become another program.
func (st *shells) holds(facts Facts) bool {
	c := st.c
	c.s.mu.Lock()
	front, relayed := st.pidLocked(), c.relayed
	c.s.mu.Unlock()
	switch {
	case front == facts.Pid:
		return !relayed || facts.Opaque
	case front == c.local.TTY().SessionPID:
		return true
	}
	return c.local.Runs(front) && !slices.Contains(c.local.Above(front), facts.Pid)
}

// enterLocked puts sh in front. If it has replaced the entered shell in front by exec, it takes its
// place: one process is one shell.
func (st *shells) enterLocked(sh *shell) {
	c := st.c
	s := c.s
	was := c.shell
	was.stopTicks()
	sh.ahead = was.ahead
	c.shell = sh
	next, news := was.track.Restart(c.known(), s.momentLocked(c))
	if was.process != nil && was.process.Pid == sh.process.Pid && !sh.relayed {
		st.all[len(st.all)-1] = sh
		sh.handed = was.handed
		if was.commands != nil {
			was.commands.close()
		}
		left := was.track.Leave(next, nil, wire.Done, s.momentLocked(c))
		news.Events = append(news.Events, left.Events...)
	} else {
		st.all = append(st.all, sh)
	}
	next.Know(sh.image)
	s.track, c.track = next, next
	s.reportLocked(c, news)
}

// stopTicks stops the timer of the tracker.
func (sh *shell) stopTicks() {
	if sh.timer != nil {
		sh.timer.Stop()
	}
	sh.timer, sh.due = nil, time.Time{}
}

// own returns the session's own shell.
func (st *shells) own() *shell {
	if len(st.all) == 0 {
		return st.c.shell
	}
	return st.all[0]
}

// around returns the shell in which the one in front runs.
func (st *shells) around() *shell { return st.all[len(st.all)-2] }
