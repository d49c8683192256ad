//go:build linux

package proc

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// sight is what one reading saw. Two are equal if nobody has moved, come or gone, and the terminal
// is set up as it was.
type sight struct {
	group int
	modes modes
	print string
	naps  []nap // of everybody who was looked at, and of the shell
}

func (s sight) equal(t sight) bool {
	return s.group == t.group && s.modes == t.modes && s.print == t.print
}

// nap is what the kernel reports of a thread's times. It stays the same for as long as the thread
// has not run.
type nap struct {
	task string // its directory
	stat string // its schedstat
}

// nap adds that of a thread to s.
func (l *look) nap(s *sight, task string) {
	s.naps = append(s.naps, nap{task, l.schedstat(task)})
}

// still returns a function that reports whether nobody whom s saw has run since, and the terminal
// is as it was. It is nil where the kernel does not count. A sleeping thread does the same as
// before, and starting a process would have made it run.
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

// read returns the beginning of a file of /proc, in buf. Not os.ReadFile, which asks the poller for
// each.
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
