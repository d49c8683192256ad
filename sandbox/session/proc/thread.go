//go:build linux

package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// class is what a thread is doing, as far as the terminal is concerned.
type class int

const (
	rest     class = iota // waits without a timeout for another thread, a child or a pipe
	reader                // waits for the terminal without a timeout, and for nothing from outside
	listener              // waits for the terminal, but with a timeout or also for something from outside
	timer                 // waits in a futex with a timeout
	busy                  // runs, or goes on by itself
)

// thread is one thread at one moment.
type thread struct {
	proc  *process
	tid   int
	class class
	call  string // what it does, for people
	line  string // of /proc/PID/task/TID/syscall
	runs  uint64 // how often it was given a processor
}

// threads reads what every thread of p does. An error is one of the kernel's for the process as a whole.
func (l *look) threads(p *process, dev uint64) ([]thread, error) {
	l.as(p.pid)
	dir := "/proc/" + strconv.Itoa(p.pid)
	tids, err := list(dir + "/task")
	if err != nil {
		return nil, err
	}
	x := &inspector{look: l, proc: p, dev: dev, dir: dir}
	defer x.close()
	threads := make([]thread, 0, len(tids))
	for _, tid := range tids {
		task := dir + "/task/" + strconv.Itoa(tid)
		t := thread{proc: p, tid: tid}
		_, t.runs = l.schedstat(task)
		b, err := l.read(task + "/syscall")
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
			if tid == p.pid || exists(task) {
				// A whole kernel without this file, or a leader that ended before its other threads.
				if !exists("/proc/self/syscall") {
					return nil, fmt.Errorf("the kernel has no /proc/PID/syscall")
				}
			}
			continue
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			return nil, fmt.Errorf("may not look into pid %d: %w", p.pid, err)
		default:
			return nil, fmt.Errorf("look into pid %d: %w", p.pid, err)
		}
		t.line = strings.TrimSpace(string(b))
		t.class, t.call = x.classify(t.line)
		threads = append(threads, t)
	}
	return threads, nil
}

// schedstat returns how long a thread has run, in nanoseconds, and how often it was given a processor; 0 if that is not told.
// Anybody may read it.
func (l *look) schedstat(task string) (ran, runs uint64) {
	if b, err := l.read(task + "/schedstat"); err == nil {
		if f := strings.Fields(string(b)); len(f) == 3 {
			ran, _ = strconv.ParseUint(f[0], 10, 64)
			runs, _ = strconv.ParseUint(f[2], 10, 64)
		}
	}
	return ran, runs
}

// ran returns how long all threads of the processes have run. Unlike the number of times it grows for one that is alone on its
// processor, too.
func (l *look) ran(members []*process) (sum uint64) {
	for _, p := range members {
		dir := "/proc/" + strconv.Itoa(p.pid) + "/task"
		tids, _ := list(dir) // one that has ended has none
		for _, tid := range tids {
			ran, _ := l.schedstat(dir + "/" + strconv.Itoa(tid))
			sum += ran
		}
	}
	return sum
}

// inspector looks at the descriptors and the memory of one process.
type inspector struct {
	*look
	proc *process
	dev  uint64 // of the terminal
	dir  string
	mem  int // descriptor of /proc/PID/mem plus one, 0 before it is needed
}

func (x *inspector) close() {
	if x.mem > 0 {
		unix.Close(x.mem - 1)
	}
}

// classify says what a thread does whose line of /proc/PID/task/TID/syscall is given.
func (x *inspector) classify(line string) (class, string) {
	c, a := decode(line, callHere)
	var fds []int
	ok := true
	switch c.kind {
	case callRead:
		fds = []int{int(int32(a[0]))}
	case callPoll:
		fds, ok = x.pollSet(a[0], a[1])
	case callSelect:
		fds, ok = x.selectSet(a[0], a[1])
	case callEpoll:
		fds, ok = x.epollSet(int(int32(a[0])))
	case callFutex:
		if c.timed(a) {
			return timer, c.name + " with a timeout"
		}
		return rest, c.name
	case callRestart:
		// Resumed after a stop. The arguments are the first call's, its number is lost: what reads as a poll of the
		// terminal is one.
		if fds, ok := x.pollSet(a[0], a[1]); ok {
			if class, why := x.sources("poll", fds, int32(a[2]) >= 0); class == reader || class == listener {
				return class, why
			}
		}
		return busy, c.name
	case callWait:
		if c.timed(a) {
			return busy, c.name + " with a timeout"
		}
		return rest, c.name
	default:
		return busy, c.name
	}
	if !ok {
		return busy, c.name + " of what cannot be read"
	}
	return x.sources(c.name, fds, c.timed(a))
}

// sources classifies a wait for any of fds.
func (x *inspector) sources(name string, fds []int, timed bool) (class, string) {
	tty, outside := -1, ""
	for _, fd := range fds {
		switch kind := x.kind(fd); kind {
		case "tty":
			if tty < 0 {
				tty = fd
			}
		case "":
		default:
			outside = kind
		}
	}
	how := ""
	if timed {
		how = " with a timeout"
	}
	if outside != "" {
		how += " also for " + outside
	}
	switch {
	case tty >= 0 && how == "":
		return reader, fmt.Sprintf("%s of the terminal (descriptor %d)", name, tty)
	case tty >= 0:
		return listener, fmt.Sprintf("%s of the terminal (descriptor %d)%s", name, tty, how)
	case how == "":
		return rest, name
	}
	return busy, name + how
}

// kind says what fd is: "tty" for our terminal, "" for what only another thread or process of this sandbox moves
// (pipes, event counters, socket pairs, terminals of our own), else a word for what may come from outside.
func (x *inspector) kind(fd int) string {
	path := x.dir + "/fd/" + strconv.Itoa(fd)
	link, err := os.Readlink(path)
	if err != nil {
		return "an unknown descriptor"
	}
	switch {
	case strings.HasPrefix(link, "/dev/"):
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			return "a file"
		}
		if st.Rdev == x.dev || st.Rdev == unix.Mkdev(5, 0) && x.proc.tty == x.dev {
			return "tty"
		}
		if strings.HasSuffix(link, "/ptmx") || strings.HasPrefix(link, "/dev/pts/") {
			return ""
		}
		return "a device"
	case strings.HasPrefix(link, "pipe:"):
		return ""
	case strings.HasPrefix(link, "socket:"):
		// The protocol of a socket of another process: sockfs tells it as an attribute.
		var name [32]byte
		n, err := unix.Getxattr(path, "system.sockprotoname", name[:])
		if err == nil && strings.HasPrefix(string(name[:n]), "UNIX") {
			return ""
		}
		return "a socket"
	case strings.HasPrefix(link, "anon_inode:"):
		switch strings.Trim(strings.TrimPrefix(link, "anon_inode:"), "[]") {
		case "eventfd", "eventpoll", "io_uring", "pidfd":
			return ""
		case "inotify":
			return "inotify"
		case "timerfd":
			return "a timer"
		case "signalfd":
			return "signals"
		}
		return "an unknown descriptor"
	case strings.HasPrefix(link, "/"):
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			return ""
		}
		return "a file"
	}
	return "an unknown descriptor"
}

// peek reads n bytes at addr of the process.
func (x *inspector) peek(addr uint64, n int) ([]byte, bool) {
	if x.mem == 0 {
		fd, err := unix.Open(x.dir+"/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, false
		}
		x.mem = fd + 1
	}
	b := make([]byte, n)
	got, err := unix.Pread(x.mem-1, b, int64(addr))
	return b, err == nil && got == n
}

const pollRdNorm = 0x40 // POLLRDNORM of <asm-generic/poll.h>

// maxFDs bounds what is looked at of one wait.
const maxFDs = 1024

// pollSet returns the descriptors that poll waits to read (struct pollfd: int fd, short events, short revents).
func (x *inspector) pollSet(addr, n uint64) (fds []int, ok bool) {
	if n > maxFDs {
		return nil, false
	}
	if n == 0 {
		return nil, true
	}
	b, ok := x.peek(addr, int(n)*8)
	if !ok {
		return nil, false
	}
	for ; len(b) > 0; b = b[8:] {
		fd := int32(binary.NativeEndian.Uint32(b))
		events := binary.NativeEndian.Uint16(b[4:])
		if fd >= 0 && events&(unix.POLLIN|pollRdNorm) != 0 {
			fds = append(fds, int(fd))
		}
	}
	return fds, true
}

// selectSet returns the descriptors below n in the set at addr.
func (x *inspector) selectSet(n, addr uint64) (fds []int, ok bool) {
	if addr == 0 || n == 0 {
		return nil, true
	}
	if n > maxFDs {
		return nil, false
	}
	b, ok := x.peek(addr, int(n+63)/64*8)
	if !ok {
		return nil, false
	}
	for fd := range int(n) {
		if binary.NativeEndian.Uint64(b[fd/64*8:])>>(fd%64)&1 != 0 {
			fds = append(fds, fd)
		}
	}
	return fds, true
}

// epollSet returns the descriptors that an epoll descriptor waits to read, from the lines "tfd: 5 events: 19 …" of its
// fdinfo.
func (x *inspector) epollSet(ep int) (fds []int, ok bool) {
	b, err := x.read(x.dir + "/fdinfo/" + strconv.Itoa(ep))
	if err != nil || len(b) == len(x.buf) {
		return nil, false // unreadable, or too many to know all
	}
	return parseEpoll(string(b))
}

func parseEpoll(fdinfo string) (fds []int, ok bool) {
	for line := range strings.Lines(fdinfo) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "tfd:" {
			continue
		}
		fd, err := strconv.Atoi(f[1])
		events, err2 := strconv.ParseUint(f[3], 16, 32)
		if err != nil || err2 != nil {
			return nil, false
		}
		if events&unix.EPOLLIN != 0 && !slices.Contains(fds, fd) {
			fds = append(fds, fd)
		}
	}
	return fds, true
}
