//go:build linux

package proc

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// sight is the result of one reading. Two are equal if no process has run, started or ended between
// them, and the modes of the terminals are the same.
type sight struct {
	group int
	modes modes
	inner []modes // of the terminals inside the terminal
	print string
	naps  []nap // of every inspected thread, and of the shell
}

func (s sight) equal(t sight) bool {
	return s.group == t.group && s.modes == t.modes && slices.Equal(s.inner, t.inner) &&
		s.print == t.print
}

// nap is the run times of a thread as the kernel reports them. They do not change while the thread
// does not run.
type nap struct {
	task string // directory of the thread in /proc
	stat string // contents of its schedstat
}

// nap adds the run times of a thread to s.
func (l *look) nap(s *sight, task string) {
	s.naps = append(s.naps, nap{task, l.schedstat(task)})
}

// still returns a function that reports whether no thread in s has run since, and the terminal is
// unchanged. It is nil if the kernel does not count run times. A thread that has not run still does
// the same, and has started no process.
func (s sight) still(tty session.TTY, pending bool) func() bool {
	for _, n := range s.naps {
		if n.stat == "" || strings.HasPrefix(n.stat, "0 ") {
			return nil
		}
	}
	return func() bool {
		m, fg, now, err := masterModes(tty, true)
		if err != nil || fg != s.group || m != s.modes || now != pending {
			return false
		}
		var buf [64]byte
		for _, n := range s.naps {
			if b, err := read(n.task+"/schedstat", buf[:]); err != nil || string(b) != n.stat {
				return false
			}
		}
		return true
	}
}

// read returns the beginning of a file in /proc, in buf. It does not use os.ReadFile, which
// registers each file with the poller.
func read(path string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(fd, buf)
	unix.Close(fd)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
