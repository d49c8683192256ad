package session

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// When the prober looks after the last byte of output: soon, since a question is usually followed by waiting, then less
// and less often.
const (
	firstLook = 300 * time.Microsecond
	lastLook  = 64 * time.Millisecond
	// After long silence the prober rests for this part of it, up to silentLook: a program that asks without a word is told
	// that much later.
	silentPart = 16
	silentLook = 250 * time.Millisecond
	// idleLook is the longest rest when the terminal needs input to go on: then only what could not be foreseen changes anything. It is
	// also for how long it is believed that whoever sleeps does what he did.
	idleLook = time.Second
	// idleBelief is the same for a reader that two readings agreed on.
	idleBelief = 16 * time.Second

	// pauseMost is the longest rest between looks that has to be exact, pausePiece how long output may go unnoticed in it.
	pauseMost  = 2 * time.Millisecond
	pausePiece = 300 * time.Microsecond

	// fewOutputs is how many outputs in a row are no flood yet.
	fewOutputs = 4
)

const (
	// staleTime is how long after a write a reader that has not run since is taken for one that has not been woken yet.
	staleTime = 50 * time.Millisecond
	// restTime is how long a program that listens beside its work must be quiet to have come to rest.
	restTime = 700 * time.Millisecond
	// idleReader is the same for one whose only company is in timed futexes, as in every Go and Java program.
	idleReader = 100 * time.Millisecond
	// settledLooks is how many looks in a row have to find the shell reading before a line that was edited at its prompt, and
	// not ended, is taken for edited.
	settledLooks = 3
	// markTime is how long a mark may be on its way: printed by the shell, which reads again, and not yet come out of the
	// terminal. On a busy machine that takes more than the few looks of everybody else.
	markTime = 25 * time.Millisecond
	// promiseTime is how long a shell that printed its prompt may do something else before it reads: after that, the mark was printed
	// by what runs in it.
	promiseTime = time.Second
)

// look is one reading of the prober.
type look struct {
	pid     int
	runs    uint64
	blocked bool
}

// waitLocked counts a caller for whom the prober looks, until release is called.
func (s *session) waitLocked() (release func()) {
	s.waiters++
	if s.waiters == 1 {
		s.unwatched = make(chan struct{})
	}
	s.fireLocked() // whoever comes anew is not kept waiting by a long rest
	if !s.watching && !s.closed {
		s.watching = true
		s.spawn(s.watch)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiters--
		if s.waiters == 0 {
			close(s.unwatched)
		}
	}
}

// watch looks at the terminal's processes while somebody waits to know: 0.3 ms after the last byte of output, then after
// twice that and so on.
func (s *session) watch() {
	delay, busy := firstLook, 0
	var verdicts int // equal ones in a row, of a prompt that no mark told
	var last sighting
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		_, end := s.log.bounds()
		s.mu.Lock()
		if s.waiters == 0 || s.closed {
			s.watching = false
			s.mu.Unlock()
			return
		}
		unwatched := s.unwatched
		var changed <-chan struct{}
		if delay > lastLook || s.heededLocked() { // input that is not echoed and a caller who has just come end a long rest
			changed = s.changedLocked()
		}
		s.mu.Unlock()

		switch s.rest(timer, delay, unwatched, s.log.changed(end), changed) {
		case restWhole:
			busy = 0
		case restUnwatched:
			continue
		case restChanged:
			delay, verdicts = s.firstRest(), 0
			continue
		case restOutput:
			// Output: begin anew, at first soon after it, in a flood less often than it comes.
			busy = min(busy+1, fewOutputs+6)
			delay, verdicts = s.firstRest(), 0
			_, end = s.log.bounds()
			// A program prints a few times before it asks.
			if s.rest(timer, max(delay, time.Duration(busy-fewOutputs)*firstLook), unwatched, s.log.changed(end), nil) != restWhole {
				continue
			}
		}
		if delay < lastLook {
			last = sighting{}
		}
		if again := s.lookOnce(&verdicts, &last); again {
			delay = firstLook
			continue
		}
		delay = min(delay*2, s.longestRest())
	}
}

// longestRest is for how long the prober may rest now.
func (s *session) longestRest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state.Phase {
	case wire.PhasePrompt, wire.PhaseContinuation, wire.PhaseWaiting:
		return idleLook
	}
	if s.heededLocked() {
		return idleLook
	}
	return min(max(s.quietLocked()/silentPart, lastLook), silentLook)
}

// sighting is what the prober saw when it looked last.
type sighting struct {
	facts   Facts
	console *console
	at      time.Time
}

// How a rest ended.
const (
	restWhole = iota
	restOutput
	restUnwatched
	restChanged
)

// rest waits for d, or until there is output, nobody waits any more, or changed is closed; nil never is.
//
// The runtime's timers are a millisecond late in a process that does nothing else: it sleeps in epoll_wait(2), which counts
// in milliseconds. A short rest is therefore given to Options.Pause, in pieces.
func (s *session) rest(timer *time.Timer, d time.Duration, unwatched, output, changed <-chan struct{}) int {
	if d <= pauseMost && s.set.opt.Pause != nil {
		for until := time.Now().Add(d); ; {
			select {
			case <-unwatched:
				return restUnwatched
			case <-output:
				return restOutput
			default:
			}
			left := time.Until(until)
			if left <= 0 {
				return restWhole
			}
			s.set.opt.Pause(min(left, pausePiece))
		}
	}
	timer.Reset(d)
	select {
	case <-timer.C:
		return restWhole
	case <-unwatched:
		return restUnwatched
	case <-output:
		return restOutput
	case <-changed:
		return restChanged
	}
}

// lookOnce asks the prober and judges its answer. It returns true when the state changed under it, so that it is worth
// looking again soon. last is what it saw the last time, for as long as that may be so still.
func (s *session) lookOnce(verdicts *int, last *sighting) (again bool) {
	_, end := s.log.bounds()
	s.mu.Lock()
	c, inputs, reads, writing := s.console, s.inputs, s.reads, s.writer != nil
	phase, quiet := s.state.Phase, time.Since(s.lastByte)
	s.mu.Unlock()
	if c == nil || writing || phase == wire.PhaseDead {
		return false
	}
	facts, err := last.facts, error(nil)
	belief := idleLook
	if facts.Blocked {
		belief = idleBelief
	}
	if facts.Still == nil || last.console != c || time.Since(last.at) > belief || !facts.Still() {
		facts, err = s.probeUntil(c, end)
		*last = sighting{facts, c, time.Now()}
	}
	if _, now := s.log.bounds(); now != end {
		return true // it printed meanwhile: what was seen is over
	}
	if err == nil && facts.Blocked && c.unread() {
		return true // what it printed before it blocked is not in the log yet
	}
	if err == nil && (facts.Blocked || facts.Listens || facts.Opaque) || err != nil && quiet >= secretTime {
		// What the answer quotes of the screen has to be what the program has printed.
		if s.display.sync(s.ctx, end) != nil {
			return false
		}
	}
	modes := s.display.modes()
	prompt := s.display.prompt()

	s.mu.Lock()
	defer s.mu.Unlock()
	untyped := s.command != nil && !s.command.typed // the shell is still at the prompt before it, and does not say so of the next
	if s.reads != reads || s.inputs != inputs || s.console != c || s.writer != nil || untyped || s.state.Phase == wire.PhaseDead {
		return true
	}
	if err != nil {
		s.judgeBlindLocked(c, facts, err, modes.AltScreen, prompt)
		return false
	}
	l := look{pid: facts.Pid, runs: facts.Runs, blocked: facts.Blocked}
	if len(s.owed) > 0 && !canonical(c.local.TTY().Master) {
		*verdicts = 0
		return true // who reads may get an answer of the terminal's
	}
	stale := facts.Blocked && s.before.blocked && l == s.before && time.Since(s.inputAt) < staleTime
	if stale || facts.Pending {
		*verdicts = 0
		return true
	}
	return s.judgeLocked(c, facts, modes.AltScreen, prompt, verdicts)
}

// probeUntil is probe, cut short by output past end. A program that has just been typed to is taken for blocked at first,
// and what it prints then does not wait for the second look at what it was.
func (s *session) probeUntil(c *console, end uint64) (Facts, error) {
	ctx, cancel := context.WithCancel(s.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		select {
		case <-s.log.changed(end):
			cancel()
		case <-ctx.Done():
		}
	})
	return s.probe(ctx, c)
}

// probe asks the prober about a terminal.
func (s *session) probe(ctx context.Context, c *console) (Facts, error) {
	switch {
	case s.without(wire.BasisProcess):
		return Facts{}, errWithout
	case s.set.opt.Prober == nil || c.local == nil:
		return Facts{}, errBlind
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.set.opt.Prober.Probe(ctx, c.local.TTY())
}

var (
	errBlind   = &wire.Error{Code: wire.CodeUnavailable, Message: "the processes of this terminal cannot be seen from here"}
	errWithout = &wire.Error{Code: wire.CodeUnavailable, Message: "this session was started without a look at its processes"}
)

// unread reports whether the terminal has output that is not in the log yet.
func (c *console) unread() bool { return unread(c.local.TTY().Master) || c.taking.Load() }

// inFront reports whether the shell's own group has the terminal. It is not known where processes are not looked at.
func (c *console) inFront() (is, known bool) {
	if c.local == nil || c.s.without(wire.BasisProcess) {
		return false, false
	}
	group, err := c.local.Front()
	return group == c.local.TTY().SessionPID, err == nil
}

// judgeLocked makes facts the state, or returns true if another look has to confirm them.
func (s *session) judgeLocked(c *console, f Facts, alt bool, prompt string, verdicts *int) (again bool) {
	front := &wire.Process{Pid: f.Pid, Argv: f.Argv}
	st := wire.State{Phase: wire.PhaseRunning, Foreground: front, Cwd: f.ShellCwd, AltScreen: alt, Basis: []wire.Basis{wire.BasisProcess}}
	atRest := s.state.Phase == wire.PhasePrompt || s.state.Phase == wire.PhaseContinuation
	// What a key of the line editor started may be in the shell's own group, and read the terminal in its place.
	f.ShellIsForeground = f.ShellIsForeground && f.Pid == c.local.TTY().SessionPID
	switch {
	case atRest && f.ShellIsForeground && !f.Blocked && time.Now().UnixMilli()-s.state.SinceUnix < promiseTime.Milliseconds():
		return false // the shell is about to read the line that its mark promised
	case f.Opaque:
		st.Phase, st.Reason, st.Prompt = wire.PhaseOpaque, f.Why, prompt
		if f.Want == wire.WantPassword {
			st.Want = f.Want // lines that are not shown are a question of its own: keys are passed on as they come
		}
		if s.quietLocked() >= restTime {
			st.Attention, st.Basis = "likely", append(st.Basis, wire.BasisSilence)
		}
	case f.Blocked && f.ShellIsForeground && c.expecting && c.phase == wire.PhaseRunning:
		return false // its prompt has begun, and is taken for complete soon, see expectPromptLocked
	case f.Blocked && f.ShellIsForeground && c.marked && c.phase != wire.PhaseRunning:
		// The shell reads a line: it is where its last mark said. Input has been edited, or the mark came while another
		// group was in front.
		*verdicts++
		if s.state.Phase == c.phase && *verdicts < settledLooks {
			return true
		}
		if s.state.Phase != c.phase && s.markDueLocked() {
			return false
		}
		s.settleLocked(c)
		return false
	case f.Blocked && f.ShellIsForeground && c.marked && (c.shell != "bash" || !canonical(c.local.TTY().Master)) && s.markDueLocked():
		// A shell that reads the way it does at its prompt. Bash edits lines there, and reads them whole for its read.
		return false
	case f.Blocked:
		st.Phase, st.Want, st.Prompt = wire.PhaseWaiting, wantOf(f, alt), prompt
		if f.ShellIsForeground && !c.marked && s.isShell() {
			st.Reason = "the shell prints no marks: whether this is its prompt is not known"
		}
	case f.Listens:
		st.Listens, st.Want, st.Prompt, st.Attention = true, wantOf(f, alt), prompt, "no"
		quiet := s.quietLocked()
		s.listener = listener{group: f.Foreground, at: time.Now()}
		if s.restsLocked(c, f, quiet) {
			st.Attention = "likely"
			st.Basis = append(st.Basis, wire.BasisScreen)
		}
	case s.stirsLocked(f):
		return false
	}
	if (c.doubt || atRest && f.ShellIsForeground && st.Phase == wire.PhaseRunning) && c.phase == wire.PhasePrompt {
		st.Disputed = []wire.Basis{wire.BasisMark}
	}
	*verdicts = 0
	s.tellLocked(st)
	return false
}

// quietLocked is how long nothing has been printed, nor typed: what has just been typed to has yet to answer, however quiet it
// was before.
func (s *session) quietLocked() time.Duration {
	return min(time.Since(s.lastByte), time.Since(s.inputAt))
}

// markDueLocked reports whether a mark may still be on its way.
func (s *session) markDueLocked() bool {
	return time.Since(s.lastByte) < markTime || time.Since(s.inputAt) < markTime
}

// settleLocked makes the state what the shell's last mark said, now that it is known to read a line.
func (s *session) settleLocked(c *console) {
	switch c.phase {
	case wire.PhasePrompt:
		if s.state.Phase != wire.PhasePrompt {
			s.readyLocked([]wire.Basis{wire.BasisProcess, wire.BasisMark})
		}
	case wire.PhaseContinuation:
		if s.state.Phase != wire.PhaseContinuation {
			s.setStateLocked(wire.State{Phase: wire.PhaseContinuation, Basis: []wire.Basis{wire.BasisProcess, wire.BasisMark}})
		}
	}
	s.verdicts++
	s.fireLocked()
}

// tellLocked makes st the state unless it is already, and counts it as a verdict if callers wait for one like it.
func (s *session) tellLocked(st wire.State) {
	is := s.state
	same := st.Phase == is.Phase && st.Want == is.Want && st.Prompt == is.Prompt && st.Attention == is.Attention && st.Listens == is.Listens &&
		sameProcess(st.Foreground, is.Foreground)
	switch {
	case !same && st.Phase == wire.PhaseRunning && is.Phase == wire.PhaseRunning && st.Listens == is.Listens && st.Attention == is.Attention:
		// Another program, or another look at the same: nobody needs to be told, whoever asks should know.
		st.Offset, st.SinceUnix = is.Offset, is.SinceUnix
		s.state = st
	case !same:
		s.setStateLocked(st)
	}
	if st.Phase == wire.PhaseWaiting || st.Attention == "likely" {
		s.verdicts++
		s.fireLocked()
	}
}

// sameProcess compares arguments, too: a child that was just forked has its shell's.
func sameProcess(a, b *wire.Process) bool {
	return a == b || a != nil && b != nil && a.Pid == b.Pid && slices.Equal(a.Argv, b.Argv)
}

// pagers are programs whose raw mode means turning pages.
var pagers = map[string]bool{"less": true, "more": true, "most": true, "pg": true, "man": true}

func wantOf(f Facts, alt bool) wire.Want {
	switch {
	case f.Want == wire.WantRaw && len(f.Argv) > 0 && pagers[filepath.Base(f.Argv[0])]:
		return wire.WantPager
	case f.Want == wire.WantRaw && alt:
		return wire.WantFullscreen
	}
	return f.Want
}
