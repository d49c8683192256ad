package session

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/session/track"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Time limits of the steps of an interrupt.
const (
	lostTime = 100 * time.Millisecond // interval of checks whether ^C was lost
	// slowPrompt is when ^C is repeated for an invisible shell that may be at its prompt and did
	// not respond.
	slowPrompt = 500 * time.Millisecond
	intTime    = time.Second // ^C
	// atPromptTime is intTime for a shell at its prompt: nothing has to stop, and the next prompt
	// may be slow.
	atPromptTime = 5 * time.Second
	termTime     = 2 * time.Second // TERM
	killTime     = 2 * time.Second // KILL
	// How long the terminal's own shell may take to its prompt after one in it was killed. The next
	// step would end it, and everything in it is lost.
	outerTime = 10 * time.Second

	accountTime = 500 * time.Millisecond // time for signalled processes to end
	lookAgain   = 2 * time.Millisecond   // interval of checks for remaining processes
)

// interrupt interrupts the program: it drops unread input, sends ^C, then TERM to the foreground
// group, then KILL to the processes of the session, until the prompt is back. A busy program that
// waits for input after ^C, such as an interpreter, counts as interrupted.
func (s *session) interrupt(ctx context.Context, p *party) *wire.Result {
	f := s.newCall(wire.Request{})
	f.key = p.Key
	s.mu.Lock()
	if err := s.mayInterruptLocked(p); err != nil {
		s.mu.Unlock()
		return f.refused(err)
	}
	f.beginLocked()
	s.mu.Unlock()
	return f.result(f.stop(ctx))
}

func (s *session) mayInterruptLocked(p *party) error {
	switch {
	case !s.aliveLocked():
		return deadError(s.name)
	case !s.keyboard.Free() && !s.keyboard.Holds(&p.Party):
		return s.keyboard.Refusal()
	}
	return nil
}

// interrupt is one running interrupt. Only its goroutine uses its fields.
type interrupt struct {
	s       *session
	f       *call // call that waits for the effect
	c       *console
	receipt *wire.Receipt
	busy    bool   // the program did not wait for input
	struck  uint64 // log offset at the last ^C
	shown   uint64 // prompts until the last ^C
	patient bool   // only a new prompt counts as a response to ^C
	without bool   // a shell without marks was at its prompt: only output counts as a response
}

// stop interrupts the program and stores the receipt in f. Until the result of f is taken, no other
// call begins; see awaitStops.
func (f *call) stop(ctx context.Context) wire.Ended {
	s := f.s
	i := &interrupt{
		s:       s,
		f:       f,
		receipt: &wire.Receipt{Steps: []string{}, Signaled: []int{}, Died: []int{}, Left: []int{}},
	}
	f.receipt = i.receipt
	s.mu.Lock()
	s.stopping++
	f.stopping = true
	i.c = s.console
	i.dropInputLocked()
	i.busy = s.track.Phase() == wire.PhaseRunning && s.track.Last().Attention != "likely"
	patience := intTime
	if s.track.Phase() == wire.PhasePrompt {
		patience = atPromptTime
	}
	release := s.waiters.addLocked()
	s.mu.Unlock()
	defer release()

	if i.c.local != nil {
		below := i.underneath()
		defer func() { i.account(below) }()
	}
	if ended, ok := i.climb(ctx, patience); ok {
		return ended
	}
	return i.stillRuns()
}

// dropInputLocked drops unwritten input and marks running calls as stopped.
func (i *interrupt) dropInputLocked() {
	s := i.s
	for f := range s.calls {
		if f.key != "" {
			f.stopped = true
		}
	}
	i.f.stopped = true
	if s.writer.present != nil {
		s.writer.present.endLocked(errDropped)
	}
	for q := range s.parties.all {
		if q.stream != nil {
			q.stream.dropInput()
		}
	}
}

// climb sends ^C, TERM and KILL in this order, until the program has ended. patience limits the
// wait after ^C.
func (i *interrupt) climb(ctx context.Context, patience time.Duration) (wire.Ended, bool) {
	c := i.c
	i.step("^C")
	if ended, ok := i.controlCUntil(ctx, patience); ok || c.local == nil {
		return ended, ok
	}
	if group, err := c.local.Front(); err == nil && group != 0 &&
		group != c.stack.leader() {
		// The shell itself ignores TERM while it is interactive.
		members, _ := c.local.Members(group)
		i.step("TERM")
		i.signal(i.receipt, members, syscall.SIGTERM)
		// A stopped process handles TERM only after it has continued.
		i.signal(new(wire.Receipt), members, continueSignal)
		if ended, ok := i.stopped(ctx, termTime); ok {
			return ended, true
		}
	}
	i.step("KILL")
	i.busy = false // a program that asks from now on was not interrupted
	i.killTree(ctx, c.stack.pids()...)
	if ended, ok := i.stopped(ctx, killTime); ok {
		return ended, true
	}
	// A shell continues its loop after a killed program. It may have missed each ^C so far.
	if ended, ok := i.controlCUntil(ctx, intTime); ok {
		return ended, true
	}
	// Only a shell itself can still be running: end it, too, the one in front first.
	if shells := c.stack.pids(); len(shells) > 1 {
		i.killTree(ctx, shells[:len(shells)-1]...)
		if ended, ok := i.stopped(ctx, outerTime); ok {
			return ended, true
		}
	}
	i.killTree(ctx)
	return i.stopped(ctx, killTime)
}

func (i *interrupt) step(name string) { i.receipt.Steps = append(i.receipt.Steps, name) }

// stopEndedLocked records that the interrupt of f has ended, if there was one.
func (f *call) stopEndedLocked() {
	if f.stopping {
		f.stopping = false
		f.s.stopping--
		f.s.fireLocked()
	}
}

// awaitStops waits until no interrupt is running, so that an earlier ^C does not hit a new command
// or text.
func (s *session) awaitStops(ctx context.Context) {
	// If ctx or the session ends first, the caller's next step returns the error.
	_ = s.until(ctx, func() bool { return s.stopping == 0 })
}

// controlCUntil sends ^C, and repeats it when it was lost, until f has ended, for at most d. A
// shell that still reads at its prompt has not handled the first ^C: bash keeps one that arrives
// before it reads, and applies it to the next line. A shell that still reads after the second ^C
// ignores it.
func (i *interrupt) controlCUntil(ctx context.Context, d time.Duration) (wire.Ended, bool) {
	i.promptsBefore()
	before := i.controlC(ctx)
	defer func() { i.patient = false }()
	for waited := time.Duration(0); waited < d; waited += lostTime {
		if ended, ok := i.stopped(ctx, lostTime); ok {
			return ended, true
		}
		if i.lost(ctx, &before, waited >= slowPrompt) {
			before = i.controlC(ctx)
			i.patient = false
		}
	}
	return "", false
}

// promptsBefore notes how the shell in front shows that it has handled ^C.
func (i *interrupt) promptsBefore() {
	s := i.s
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.track.Last()
	i.without = st.Phase == wire.PhasePrompt && st.Shell != nil
	i.patient = i.c.marked && !i.without
}

// controlC drops undelivered input, sends ^C, and returns the foreground at that time. The
// interrupt has ended a running write, so controlC waits for the writer only briefly, at most
// intTime.
func (i *interrupt) controlC(ctx context.Context) front {
	s, c := i.s, i.c
	ctx, cancel := context.WithTimeout(ctx, intTime)
	defer cancel()
	if s.writer.lock(ctx) == nil {
		defer s.writer.unlock()
	}
	if c.local != nil {
		if err := c.local.Flush(); err != nil {
			s.set.log.Debug("flush terminal", "session", s.name, "error", err)
		}
	}
	s.mu.Lock()
	s.track.Writes()
	s.track.Was(track.Reader{})
	s.writer.takenLocked([]byte{3})
	_, i.struck = s.log.bounds()
	i.shown = c.track.Counts().Prompted
	_ = c.term.SetWriteDeadline(time.Now().Add(intTime))
	s.mu.Unlock()
	at := c.lookFront()
	job := c.local != nil && at.group != c.stack.leader()
	if job {
		at.members, _ = c.local.Members(at.group)
	}
	_, err := c.term.Write([]byte{3})
	if job {
		// Processes that have ended meanwhile received it. Processes that a handler has started
		// since did not, and should not.
		now, _ := c.local.Members(at.group)
		at.members = slices.DeleteFunc(
			at.members,
			func(pid int) bool { return !slices.Contains(now, pid) },
		)
	}
	s.mu.Lock()
	s.track.Wrote(time.Now())
	s.mu.Unlock()
	if err != nil {
		s.set.log.Debug("write ^C", "session", s.name, "error", err)
	}
	return at
}

// underneath returns the foreground job with its descendants, which ^C may not reach: those started
// with setsid, and background ones that ignore it. A younger orphan counts as a descendant.
func (i *interrupt) underneath() []int {
	c := i.c
	shell := c.stack.leader()
	group, err := c.local.Front()
	if err != nil || group == shell {
		return nil
	}
	members, _ := c.local.Members(group)
	below, _ := c.local.Below(members)
	others, _ := c.local.Below([]int{shell})
	tree, _ := c.local.Tree() // account reports an error
	return slices.DeleteFunc(tree, func(pid int) bool {
		return !slices.Contains(members, pid) && !slices.Contains(below, pid) &&
			(pid <= max(group, shell) || slices.Contains(others, pid))
	})
}

// stopped waits until the prompt is back, for at most d. For a busy program, waiting for input is
// enough.
func (i *interrupt) stopped(ctx context.Context, d time.Duration) (wire.Ended, bool) {
	s, f := i.s, i.f
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var ended wire.Ended
	err := s.until(ctx, func() bool {
		e, ok := f.endLocked()
		switch {
		case !ok:
			return false
		case i.patient && e == wire.Interrupted && f.c.track.Counts().Prompted == f.since.Prompted:
			return false
		case i.without && !i.printedLocked():
			return false
		case e == wire.Done || e == wire.Interrupted:
			ended = wire.Interrupted
		case e == wire.Dead, e == wire.Refused:
			ended = e
		case s.track.Phase() == wire.PhaseOpaque && (!i.answeredLocked() || i.c.promptDueLocked()):
			return false
		case (e == wire.Waiting || e == wire.Attention) && (i.busy || s.console.bareLocked()):
			ended = wire.Interrupted
		default:
			return false
		}
		return true
	})
	return ended, err == nil
}

// answeredLocked reports whether the program has printed a prompt since ^C. Without process
// evidence, silence is not enough: a program that ignores ^C is silent, too, except for the
// terminal's echo. Output that was not looked at may be the shell's report that the program ended.
func (i *interrupt) answeredLocked() bool {
	s := i.s
	return s.track.Last().Prompt != "" && s.track.Seen() > i.struck && i.printedLocked()
}

// printedLocked reports whether there is output since ^C that does not end with its echo.
func (i *interrupt) printedLocked() bool {
	s := i.s
	_, end := s.log.bounds()
	prompt := strings.TrimRight(s.track.Last().Prompt, " ")
	return end > i.struck && !strings.HasSuffix(prompt, "^C")
}

// bareLocked reports whether the terminal's shell is in the foreground and prints no marks.
func (c *console) bareLocked() bool { return !c.marked && c.shellInFrontLocked() }

// promptDueLocked reports whether the terminal's shell is in the foreground, and prints a mark at
// its prompt: what it has printed so far is a report on the program that ended.
func (c *console) promptDueLocked() bool { return c.marked && c.shellInFrontLocked() }

func (c *console) shellInFrontLocked() bool {
	if c.local == nil || !c.s.isShell() {
		return false
	}
	group, err := c.local.Front()
	return err == nil && group == c.stack.leaderLocked()
}

// stillRuns returns the result if no step had an effect.
func (i *interrupt) stillRuns() wire.Ended {
	s, f := i.s, i.f
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended, ok := f.endLocked(); ok {
		return ended
	}
	return wire.Deadline
}

func (i *interrupt) signal(receipt *wire.Receipt, pids []int, sig syscall.Signal) {
	s, c := i.s, i.c
	for _, pid := range pids {
		if err := c.local.Signal(pid, sig); err != nil {
			s.set.log.Debug("signal", "session", s.name, "pid", pid, "signal", sig, "error", err)
			continue
		}
		if !slices.Contains(receipt.Signaled, pid) {
			receipt.Signaled = append(receipt.Signaled, pid)
		}
	}
}

// killTree kills all processes of the session except spare and what they run in. It stops when two
// checks in a row find none: a process may fork between check and kill.
func (i *interrupt) killTree(ctx context.Context, spare ...int) {
	s, c := i.s, i.c
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	for clean := 0; clean < 2; {
		pids, err := c.local.Tree()
		if err != nil {
			s.set.log.Warn("look for processes", "session", s.name, "error", err)
			return
		}
		spared := slices.Clone(spare)
		for _, pid := range spare {
			spared = append(spared, c.local.Above(pid)...) // such as su
		}
		pids = slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(spared, pid) })
		clean++
		if len(pids) > 0 {
			clean = 0
			i.signal(i.receipt, pids, syscall.SIGKILL)
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return
		}
	}
}

// account completes the receipt: which signalled processes ended, and which processes of the former
// foreground job, below, still run. It allows them a moment to end. A job that is still in the
// foreground does not count as left.
func (i *interrupt) account(below []int) {
	s, c, receipt := i.s, i.c, i.receipt
	for deadline := time.Now().Add(accountTime); ; {
		tree, err := c.local.Tree()
		if err != nil {
			s.set.log.Warn("look for processes", "session", s.name, "error", err)
			return
		}
		group, _ := c.local.Front()
		front, _ := c.local.Members(group)
		receipt.Died, receipt.Left = receipt.Died[:0], receipt.Left[:0]
		for _, pid := range receipt.Signaled {
			if slices.Contains(tree, pid) {
				receipt.Left = append(receipt.Left, pid)
			} else {
				receipt.Died = append(receipt.Died, pid)
			}
		}
		for _, pid := range below {
			if slices.Contains(tree, pid) && !slices.Contains(receipt.Signaled, pid) &&
				!slices.Contains(front, pid) {
				receipt.Left = append(receipt.Left, pid)
			}
		}
		if len(receipt.Left) == 0 || time.Now().After(deadline) {
			return
		}
		<-time.After(lookAgain)
	}
}

// waiting handles a wait: it returns the current state if that was asked for, else the next such
// state.
func (s *session) waiting(ctx context.Context, r wire.Request) (*wire.Result, error) {
	if slices.Contains(r.For, wire.PhaseRunning) {
		return nil, &wire.Error{
			Code:    wire.CodeUsage,
			Message: "running is not a phase to wait for",
			Hint:    "wait for prompt, waiting, continuation, opaque or dead",
		}
	}
	f := s.newCall(r)
	f.level, f.phases = true, r.For
	bounded, cancel := bound(ctx, r.TimeoutMS)
	defer cancel()
	s.mu.Lock()
	if s.console == nil {
		s.mu.Unlock()
		return nil, deadError(s.name)
	}
	f.beginLocked()
	s.mu.Unlock()
	ended := f.wait(bounded)
	res := f.result(ended)
	if cause := context.Cause(ctx); cause != nil && ended == wire.Deadline &&
		!errors.Is(cause, context.DeadlineExceeded) {
		return nil, cause
	}
	return res, nil
}
