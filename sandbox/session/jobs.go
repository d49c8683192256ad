package session

import "github.com/sandboxd/sandboxd/sandbox/wire"

// A JobProber is a [Prober] that also knows which processes may print on a terminal beside its
// foreground group.
type JobProber interface {
	Prober
	// Jobs returns the processes of the terminal's session, without its shell, that have the
	// terminal as standard output or standard error. It takes less than 100 µs where there is none.
	Jobs(tty TTY) ([]Job, error)
}

// Job is such a process.
type Job struct {
	Group   int    // its process group
	Written uint64 // bytes that it, and children that it has waited for, have written, to whatever
	Hidden  bool   // Written may not be read
}

// background is the jobs of a terminal at the beginning of a call, by process group.
type background map[int]Job

// noteJobs notes the jobs of the present terminal, at the beginning of the call.
func (f *call) noteJobs() {
	s := f.s
	s.mu.Lock()
	c := s.console
	s.mu.Unlock()
	f.jobs = c.background()
}

// background returns the jobs that are there now, beside the foreground group.
func (c *console) background() background {
	if c == nil || c.local == nil || c.s.without(wire.BasisProcess) {
		return nil
	}
	prober, ok := c.s.set.opt.Prober.(JobProber)
	if !ok {
		return nil
	}
	all, err := prober.Jobs(c.local.TTY())
	if err != nil {
		return nil
	}
	front, _ := c.local.Front() // 0, which is nobody's, where there is none
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

// mayHavePrinted reports whether a job may have printed until now is what is there: it has written
// something, or ended, or cannot be looked into. Where it wrote to is not known.
func (b background) mayHavePrinted(now background) bool {
	for group, before := range b {
		after, there := now[group]
		if !there || before.Hidden || after.Hidden || before.Written != after.Written {
			return true
		}
	}
	return false
}
