package session

import "github.com/sandboxd/sandboxd/sandbox/wire"

// JobProber is a [Prober] that also finds processes outside the foreground group that may print on
// a terminal.
type JobProber interface {
	Prober
	// Jobs returns the processes of the terminal's session, except its shell, whose standard output
	// or error is the terminal.
	Jobs(tty TTY) ([]Job, error)
}

// Job is a process that may print on a terminal.
type Job struct {
	Group   int    // its process group
	Written uint64 // bytes that it and its waited-for children have written, to any file
	Hidden  bool   // Written cannot be read
}

// background has the jobs of a terminal at the start of a call, by process group.
type background map[int]Job

// noteJobs records the jobs of the current terminal at the start of the call.
func (f *call) noteJobs() {
	s := f.s
	s.mu.Lock()
	c := s.console
	s.mu.Unlock()
	f.jobs = c.background()
}

// background returns the current jobs outside the foreground group.
func (c *console) background() background {
	if c == nil || c.local == nil || c.s.without(wire.BasisProcess) {
		return nil
	}
	prober, ok := c.s.set.opt.Prober.(JobProber)
	if !ok {
		return nil
	}
	all, err := prober.Jobs(c.stack.tty())
	if err != nil {
		return nil
	}
	front, _ := c.local.Front() // 0 if there is none
	var jobs background
	for _, j := range all {
		if j.Group == front {
			continue
		}
		if jobs == nil {
			jobs = make(background)
		}
		sum := jobs[j.Group]
		jobs[j.Group] = Job{Written: sum.Written + j.Written, Hidden: sum.Hidden || j.Hidden}
	}
	return jobs
}

// mayHavePrinted reports whether a job of b may have printed, given the current jobs now: it has
// written something to any file, has ended, or cannot be inspected.
func (b background) mayHavePrinted(now background) bool {
	for group, before := range b {
		after, there := now[group]
		if !there || before.Hidden || after.Hidden || before.Written != after.Written {
			return true
		}
	}
	return false
}
