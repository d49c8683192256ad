package session

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// How long each step of an interrupt is given before the next.
const (
	intTime  = time.Second     // ^C
	termTime = 2 * time.Second // TERM
	killTime = 2 * time.Second // KILL
)

// interrupt stops what runs: it drops input that was not read yet, sends ^C, then TERM to the foreground group, then KILL to
// the processes of the session, and does no more than it takes to get the prompt back. A program that was busy and waits
// for input after ^C, as an interpreter does, has been interrupted.
func (s *session) interrupt(ctx context.Context, p *party) *wire.Result {
	f := s.newFollow(0)
	f.key = p.key
	s.mu.Lock()
	if err := s.mayInterruptLocked(p); err != nil {
		s.mu.Unlock()
		return s.refused(err)
	}
	s.beginLocked(f)
	s.mu.Unlock()
	return s.result(f, s.stop(ctx, f))
}

func (s *session) mayInterruptLocked(p *party) error {
	switch {
	case p.Rights == wire.RightWatch:
		return watchOnly(p)
	case !s.aliveLocked():
		return deadError(s.name)
	case s.keyboard.hold != holdFree && !s.keyboard.holds(p):
		return s.keyboard.refusal()
	}
	return nil
}

// stop is the ladder. It leaves the receipt in f.
func (s *session) stop(ctx context.Context, f *follow) wire.Ended {
	receipt := &wire.Receipt{Steps: []string{}, Signaled: []int{}, Died: []int{}, Left: []int{}}
	f.receipt = receipt
	s.mu.Lock()
	c := s.console
	for g := range s.follows {
		if g.key != "" {
			g.stopped = true
		}
	}
	f.stopped = true
	if s.writer != nil {
		s.writer.endLocked(errDropped)
	}
	for q := range s.parties {
		if q.stream != nil {
			q.stream.dropInput()
		}
	}
	busy := s.state.Phase == wire.PhaseRunning
	release := s.waitLocked()
	s.mu.Unlock()
	defer release()

	s.controlC(ctx, c)
	receipt.Steps = append(receipt.Steps, "^C")
	if ended, ok := s.stopped(ctx, f, busy, intTime); ok {
		return ended
	}
	if c.local == nil {
		return s.stillRuns(f)
	}
	defer s.account(c, receipt)
	if group, err := c.local.Front(); err == nil && group != 0 && group != c.local.TTY().SessionPID {
		// The shell itself ignores TERM while it is interactive.
		members, _ := c.local.Members(group)
		receipt.Steps = append(receipt.Steps, "TERM")
		s.signal(c, receipt, members, syscall.SIGTERM)
		s.signal(c, new(wire.Receipt), members, syscall.SIGCONT) // a stopped one would never take it
		if ended, ok := s.stopped(ctx, f, busy, termTime); ok {
			return ended
		}
	}
	receipt.Steps = append(receipt.Steps, "KILL")
	s.killTree(ctx, c, receipt, c.local.TTY().SessionPID)
	if ended, ok := s.stopped(ctx, f, false, killTime); ok {
		return ended
	}
	// What runs is the shell itself.
	s.killTree(ctx, c, receipt, 0)
	if ended, ok := s.stopped(ctx, f, false, killTime); ok {
		return ended
	}
	return s.stillRuns(f)
}

// controlC drops what the terminal has not delivered and sends ^C. It is not held up by a write that the interrupt has just
// cut short.
func (s *session) controlC(ctx context.Context, c *console) {
	ctx, cancel := context.WithTimeout(ctx, intTime)
	defer cancel()
	if s.lockWriting(ctx) == nil {
		defer s.unlockWriting()
	}
	if c.local != nil {
		if err := c.local.Flush(); err != nil {
			s.set.log.Debug("flush terminal", "session", s.name, "error", err)
		}
	}
	s.mu.Lock()
	s.inputs++
	s.before = look{}
	s.inputTakenLocked([]byte{3})
	_ = c.term.SetWriteDeadline(time.Now().Add(intTime))
	s.mu.Unlock()
	_, err := c.term.Write([]byte{3})
	s.mu.Lock()
	s.inputs++
	s.inputAt = time.Now()
	s.mu.Unlock()
	if err != nil {
		s.set.log.Debug("write ^C", "session", s.name, "error", err)
	}
}

// stopped waits until the prompt is back, at most d. If what ran was busy, waiting for input will do.
func (s *session) stopped(ctx context.Context, f *follow, busy bool, d time.Duration) (wire.Ended, bool) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var ended wire.Ended
	err := s.until(ctx, func() bool {
		e, ok := s.endLocked(f)
		switch {
		case !ok:
			return false
		case e == wire.Done || e == wire.Interrupted:
			ended = wire.Interrupted
		case e == wire.Dead, e == wire.Refused:
			ended = e
		case e == wire.Waiting && busy:
			ended = wire.Interrupted
		default:
			return false
		}
		return true
	})
	return ended, err == nil
}

// stillRuns is the answer when every step was in vain.
func (s *session) stillRuns(f *follow) wire.Ended {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended, ok := s.endLocked(f); ok {
		return ended
	}
	return wire.Deadline
}

func (s *session) signal(c *console, receipt *wire.Receipt, pids []int, sig syscall.Signal) {
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

// killTree kills all processes of the session but the spared one, until two looks in a row find none: between looking and
// killing one may have had a child.
func (s *session) killTree(ctx context.Context, c *console, receipt *wire.Receipt, spare int) {
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
			s.signal(c, receipt, pids, syscall.SIGKILL)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// account says what became of what was signalled.
func (s *session) account(c *console, receipt *wire.Receipt) {
	left, err := c.local.Tree()
	if err != nil {
		s.set.log.Warn("look for processes", "session", s.name, "error", err)
		return
	}
	for _, pid := range receipt.Signaled {
		if slices.Contains(left, pid) {
			receipt.Left = append(receipt.Left, pid)
		} else {
			receipt.Died = append(receipt.Died, pid)
		}
	}
}

// waiting answers a mere wait: the present state if it is one that was asked for, else the next that is.
func (s *session) waiting(ctx context.Context, r wire.Request) (*wire.Result, error) {
	if slices.Contains(r.For, wire.PhaseRunning) {
		return nil, &wire.Error{Code: wire.CodeUsage, Message: "running is not a phase to wait for", Hint: "wait for prompt, waiting, continuation, opaque or dead"}
	}
	f := s.newFollow(r.MaxOutput)
	f.level, f.phases = true, r.For
	bounded, cancel := bound(ctx, r.TimeoutMS)
	defer cancel()
	s.mu.Lock()
	if s.console == nil {
		s.mu.Unlock()
		return nil, deadError(s.name)
	}
	s.beginLocked(f)
	s.mu.Unlock()
	ended := s.wait(bounded, f)
	res := s.result(f, ended)
	if cause := context.Cause(ctx); cause != nil && ended == wire.Deadline && !errors.Is(cause, context.DeadlineExceeded) {
		return nil, cause
	}
	return res, nil
}
