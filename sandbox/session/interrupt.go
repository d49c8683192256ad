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

// How long each step of an interrupt is given before the next.
const (
	lostTime = 100 * time.Millisecond // between two times that it is asked whether ^C was lost
	// slowPrompt is when a shell that may be at its prompt, and did not answer ^C, gets another
	// where it cannot be seen.
	slowPrompt = 500 * time.Millisecond
	intTime    = time.Second // ^C
	// atPromptTime is intTime for a shell that was at its prompt: there is nothing to stop, and its
	// next prompt may take its time.
	atPromptTime = 5 * time.Second
	termTime     = 2 * time.Second // TERM
	killTime     = 2 * time.Second // KILL

	accountTime = 500 * time.Millisecond // what was signalled may take to go
	lookAgain   = 2 * time.Millisecond   // between two looks at what is left
)

// interrupt stops what runs: it drops input that was not read yet, sends ^C, then TERM to the
// foreground group, then KILL to the processes of the session, and does no more than it takes to
// get the prompt back. A program that was busy and waits for input after ^C, as an interpreter
// does, has been interrupted.
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

// interrupt is an interrupt under way. Its fields are its goroutine's own.
type interrupt struct {
	s       *session
	f       *call // that waits for what comes of it
	c       *console
	receipt *wire.Receipt
	busy    bool   // what runs did not wait for input
	struck  uint64 // where in the log the last ^C was sent
	patient bool   // only a new prompt answers ^C
}

// stop stops what runs, and leaves the receipt in f. Until the result of f is taken, no other call
// begins: see awaitStops.
func (f *call) stop(ctx context.Context) wire.Ended {
	s := f.s
	i := &interrupt{s: s, f: f, receipt: &wire.Receipt{Steps: []string{}, Signaled: []int{}, Died: []int{}, Left: []int{}}}
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

// dropInputLocked drops input that was not written yet, and tells the calls under way that they are
// stopped.
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

// climb takes one step after the other until what runs has ended. patience is the time that the
// first is given.
func (i *interrupt) climb(ctx context.Context, patience time.Duration) (wire.Ended, bool) {
	c := i.c
	i.step("^C")
	if ended, ok := i.controlCUntil(ctx, patience); ok || c.local == nil {
		return ended, ok
	}
	if group, err := c.local.Front(); err == nil && group != 0 && group != c.local.TTY().SessionPID {
		// The shell itself ignores TERM while it is interactive.
		members, _ := c.local.Members(group)
		i.step("TERM")
		i.signal(i.receipt, members, syscall.SIGTERM)
		i.signal(new(wire.Receipt), members, syscall.SIGCONT) // a stopped one would never take it
		if ended, ok := i.stopped(ctx, termTime); ok {
			return ended, true
		}
	}
	i.step("KILL")
	i.busy = false // who asks now has not been interrupted
	i.killTree(ctx, c.local.TTY().SessionPID)
	if ended, ok := i.stopped(ctx, killTime); ok {
		return ended, true
	}
	// A shell goes on with its loop when a program of it was killed. It may have missed each ^C so
	// far.
	if ended, ok := i.controlCUntil(ctx, intTime); ok {
		return ended, true
	}
	// What runs is the shell itself.
	i.killTree(ctx, 0)
	return i.stopped(ctx, killTime)
}

func (i *interrupt) step(name string) { i.receipt.Steps = append(i.receipt.Steps, name) }

// stopEndedLocked notes that the interrupt of f is over, if there was one.
func (f *call) stopEndedLocked() {
	if f.stopping {
		f.stopping = false
		f.s.stopping--
		f.s.fireLocked()
	}
}

// awaitStops waits until no interrupt is under way. A command or text that comes earlier could
// get a ^C that was meant for what ran before it.
func (s *session) awaitStops(ctx context.Context) {
	// Where ctx or the session ends first, the caller's next step says so.
	_ = s.until(ctx, func() bool { return s.stopping == 0 })
}

// controlCUntil sends ^C, and again each time that it was lost, until f has ended, for d at most. A
// shell that only goes on reading at its prompt has not answered the first: bash keeps one that
// comes before it reads, and ends with it the next line that it is given. One that does so after
// the second ignores it.
func (i *interrupt) controlCUntil(ctx context.Context, d time.Duration) (wire.Ended, bool) {
	before := i.controlC(ctx)
	i.patient = i.c.marked
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

// controlC drops what the terminal has not delivered and sends ^C. It is not held up by a write
// that the interrupt has just cut short. It returns what was in front then.
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
	_ = c.term.SetWriteDeadline(time.Now().Add(intTime))
	s.mu.Unlock()
	at := c.lookFront()
	job := c.local != nil && at.group != c.local.TTY().SessionPID
	if job {
		at.members, _ = c.local.Members(at.group)
	}
	_, err := c.term.Write([]byte{3})
	if job {
		// Those that have died meanwhile have got it. What a handler has started since has not, and
		// is not meant.
		now, _ := c.local.Members(at.group)
		at.members = slices.DeleteFunc(at.members, func(pid int) bool { return !slices.Contains(now, pid) })
	}
	s.mu.Lock()
	s.track.Wrote(time.Now())
	s.mu.Unlock()
	if err != nil {
		s.set.log.Debug("write ^C", "session", s.name, "error", err)
	}
	return at
}

// underneath returns the foreground job with all that descends from it: what it has started with
// setsid ^C does not reach, what it has started in the background may ignore it. An orphan is its
// own if it is younger.
func (i *interrupt) underneath() []int {
	c := i.c
	shell := c.local.TTY().SessionPID
	group, err := c.local.Front()
	if err != nil || group == shell {
		return nil
	}
	members, _ := c.local.Members(group)
	below, _ := c.local.Below(members)
	others, _ := c.local.Below([]int{shell})
	tree, _ := c.local.Tree() // account tells of an error
	return slices.DeleteFunc(tree, func(pid int) bool {
		return !slices.Contains(members, pid) && !slices.Contains(below, pid) && (pid <= max(group, shell) || slices.Contains(others, pid))
	})
}

// stopped waits until the prompt is back, at most d. If what ran was busy, waiting for input will
// do.
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
		case e == wire.Done || e == wire.Interrupted:
			ended = wire.Interrupted
		case e == wire.Dead, e == wire.Refused:
			ended = e
		case s.track.Phase() == wire.PhaseOpaque && !i.answeredLocked():
			return false
		case (e == wire.Waiting || e == wire.Attention) && (i.busy || s.console.bare()):
			ended = wire.Interrupted
		default:
			return false
		}
		return true
	})
	return ended, err == nil
}

// answeredLocked reports whether what runs has shown a prompt since ^C. Where nobody can look at it
// that it is quiet says nothing: so is a program that ignores ^C, of which there is only the
// terminal's echo.
func (i *interrupt) answeredLocked() bool {
	s := i.s
	_, end := s.log.bounds()
	prompt := strings.TrimRight(s.track.Last().Prompt, " ")
	return end > i.struck && prompt != "" && !strings.HasSuffix(prompt, "^C")
}

// bare reports whether the terminal's own shell is in front and has no marks to say that it is at
// its prompt.
func (c *console) bare() bool {
	if c.marked || c.local == nil || !c.s.isShell() {
		return false
	}
	group, err := c.local.Front()
	return err == nil && group == c.local.TTY().SessionPID
}

// stillRuns is the answer when every step was in vain.
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

// killTree kills all processes of the session but the spared one, until two looks in a row find
// none: between looking and killing one may have had a child.
func (i *interrupt) killTree(ctx context.Context, spare int) {
	s, c := i.s, i.c
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	for clean := 0; clean < 2; {
		pids, err := c.local.Tree()
		if err != nil {
			s.set.log.Warn("look for processes", "session", s.name, "error", err)
			return
		}
		pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == spare })
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

// account says what became of what was signalled, and what else lives on of the job that was in
// front: below. It may take a moment to go. What is in front still has been left by nobody.
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
			if slices.Contains(tree, pid) && !slices.Contains(receipt.Signaled, pid) && !slices.Contains(front, pid) {
				receipt.Left = append(receipt.Left, pid)
			}
		}
		if len(receipt.Left) == 0 || time.Now().After(deadline) {
			return
		}
		<-time.After(lookAgain)
	}
}

// waiting answers a mere wait: the present state if it is one that was asked for, else the next
// that is.
func (s *session) waiting(ctx context.Context, r wire.Request) (*wire.Result, error) {
	if slices.Contains(r.For, wire.PhaseRunning) {
		return nil, &wire.Error{Code: wire.CodeUsage, Message: "running is not a phase to wait for", Hint: "wait for prompt, waiting, continuation, opaque or dead"}
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
	if cause := context.Cause(ctx); cause != nil && ended == wire.Deadline && !errors.Is(cause, context.DeadlineExceeded) {
		return nil, cause
	}
	return res, nil
}
