//go:build linux

package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// class is what a thread is doing with regard to the terminal.
type class int

const (
	rest   class = iota // waits without a timeout for another thread, a child or a pipe
	reader              // waits for the terminal without a timeout, and for nothing from outside
	// Waits for the terminal, but with a timeout or also for an event from outside.
	listener
	timer // waits in a futex with a timeout
	busy  // runs, or continues by itself
)

// thread is the state of a thread at one moment.
type thread struct {
	proc  *process
	tid   int
	class class
	call  string // what it does, in words
	line  string // contents of /proc/PID/task/TID/syscall
	nap   nap
	runs  uint64 // how often it was given a processor
	wait
}

// wait is more about what a thread waits for.
type wait struct {
	masters []int // master descriptors of other terminals
	own     bool  // it continues by itself, or on an event from outside other than a signal
	child   bool  // it waits for a child, or for a signal such as SIGCHLD
}

// threads returns what every thread of p does. An error concerns the process as a whole.
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
		if p.state == leaderless {
			if tid == p.pid {
				continue
			}
			x.dir = task // the leader has no descriptors and no memory left
		}
		t := thread{proc: p, tid: tid}
		t.nap.task, t.nap.stat = task, l.schedstat(task)
		_, t.runs = parseSchedstat(t.nap.stat)
		b, err := l.read(task + "/syscall")
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
			if tid == p.pid || exists(task) {
				// Either the kernel has no such file, or the leader ended before its other threads.
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
		x.wait = wait{}
		t.class, t.call = x.classify(t.line)
		t.wait = x.wait
		if l.stopped(p, &t, task) {
			t.class, t.call = busy, "stopped"
		}
		threads = append(threads, t)
	}
	return threads, nil
}

// stopped reports whether a thread is stopped, by ptrace(2) or job control, and so neither reads
// nor waits in its call. The process that stopped it may continue it. The state of p is that of its
// first thread. A stop of the whole process stops all threads; otherwise only the state of readers
// matters.
func (l *look) stopped(p *process, t *thread, task string) bool {
	state := p.state
	if t.tid != p.pid && state != 'T' && (t.class == reader || t.class == listener) {
		if b, err := l.read(task + "/stat"); err == nil {
			if own, err := parseStat(t.tid, b); err == nil {
				state = own.state
			}
		}
	}
	return state == 'T' || state == 't'
}

// alarmed reports whether p has a timer that signals it (timer_create(2)). The kernel does not show
// whether the timer is armed.
func (l *look) alarmed(p *process) bool {
	b, err := l.read("/proc/" + strconv.Itoa(p.pid) + "/timers")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if how, ok := strings.CutPrefix(line, "notify: "); ok && !strings.HasPrefix(how, "none/") {
			return true
		}
	}
	return false
}

// schedstat returns the run times of a thread (the line of schedstat), or "" if not available. Any
// user may read it.
func (l *look) schedstat(task string) string {
	b, err := l.read(task + "/schedstat")
	if err != nil {
		return ""
	}
	return string(b)
}

// parseSchedstat returns how long a thread has run, in nanoseconds, and how often it was given a
// processor. Both are 0 if not known.
func parseSchedstat(line string) (ran, runs uint64) {
	if f := strings.Fields(line); len(f) == 3 {
		ran, _ = strconv.ParseUint(f[0], 10, 64)
		runs, _ = strconv.ParseUint(f[2], 10, 64)
	}
	return ran, runs
}

// ran returns how long all threads of the processes have run. Unlike the number of times, this also
// grows for a thread that never leaves its processor.
func (l *look) ran(members []*process) (sum uint64) {
	for _, p := range members {
		dir := "/proc/" + strconv.Itoa(p.pid) + "/task"
		tids, _ := list(dir) // a process that has ended has none
		for _, tid := range tids {
			ran, _ := parseSchedstat(l.schedstat(dir + "/" + strconv.Itoa(tid)))
			sum += ran
		}
	}
	return sum
}

// inspector reads the descriptors and the memory of one process.
type inspector struct {
	*look
	proc *process
	dev  uint64 // device of the terminal
	dir  string
	wait     // of the current thread
	mem  int // descriptor of /proc/PID/mem plus one, 0 before its first use
}

func (x *inspector) close() {
	if x.mem > 0 {
		unix.Close(x.mem - 1)
	}
}

// classify returns what a thread does, from its line of /proc/PID/task/TID/syscall.
func (x *inspector) classify(line string) (class, string) {
	c, a := x.decode(line)
	var fds []int
	var ok bool
	switch c.kind {
	case callRead:
		fd := int(int32(a[0]))
		return x.sources(c.name, []int{fd}, x.polls && x.kind(fd) == "tty")
	case callMove:
		fd := int(int32(a[c.arg]))
		if x.kind(fd) != "tty" {
			return busy, c.name
		}
		x.own = true // it may wait for room in the destination instead
		return listener, fmt.Sprintf("%s of the terminal (descriptor %d)", c.name, fd)
	case callPoll:
		fds, ok = x.pollSet(a[0], a[1])
	case callSelect:
		fds, ok = x.selectSets(a)
	case callEpoll:
		fds, ok = x.epollSet(int(int32(a[0])))
	case callFutex:
		if c.timed(a) {
			return timer, c.name + " with a timeout"
		}
		return rest, c.name
	case callRestart:
		// The call was resumed after a stop. Its arguments are the first call's, but its number is
		// lost. If the arguments make sense as a poll of the terminal, it is one.
		if fds, ok := x.pollSet(a[0], a[1]); ok {
			if class, why := x.sources("poll", fds, int32(a[2]) >= 0); class == reader ||
				class == listener {
				return class, why
			}
		}
		return busy, c.name
	case callWait:
		if c.timed(a) {
			return busy, c.name + " with a timeout"
		}
		x.child = true
		return rest, c.name
	default:
		return busy, c.name
	}
	if !ok {
		return busy, c.name + " of what cannot be read"
	}
	if x.onlyLooks(c, a) {
		return busy, c.name + ", which does not wait"
	}
	return x.sources(c.name, fds, c.timed(a))
}

// onlyLooks reports whether the timeout of a call is zero. A thread is seen in such a call if it
// had to give up its processor. For example, busybox checks for keys that way before it draws its
// prompt.
func (x *inspector) onlyLooks(c call, a arguments) bool {
	switch c.timeout {
	case timeoutMillis:
		return int32(a[c.arg]) == 0
	case timeoutPointer:
		// struct timespec or timeval: two 64-bit numbers, except in old calls of i386.
		b, ok := x.peek(a[c.arg], 16)
		return a[c.arg] != 0 && ok && bytes.Count(b, []byte{0}) == len(b)
	}
	return false
}

// decode is decode with the table for the architecture of the calling code. The number does not
// show it. The instruction before the program counter, the last field of the line, does.
func (x *inspector) decode(line string) (call, arguments) {
	f := strings.Fields(line)
	if len(f) < 9 {
		return decode(line, foreign)
	}
	pc, err := strconv.ParseUint(f[8], 0, 64)
	if err != nil {
		return decode(line, foreign)
	}
	if b, ok := x.peek(pc-uint64(trapSize), trapSize); ok {
		switch trap := string(b); {
		case trap == trapHere:
			return decode(line, callHere)
		case trap == trapI386 && runtime.GOARCH == "amd64":
			c, a := decode(line, i386.call)
			for i := range a {
				a[i] &= 1<<32 - 1 // the kernel uses 32 bits
			}
			return c, a
		}
	}
	return decode(line, foreign)
}

// sources classifies a wait for any of fds. A descriptor that is not waited for to be readable is
// given as its complement. For a socket, other events end a wait too, such as an established
// connection.
func (x *inspector) sources(name string, fds []int, timed bool) (class, string) {
	tty, outside := -1, ""
	x.own = timed
	for i := 0; i < len(fds); i++ {
		fd := fds[i]
		if fd < 0 {
			if x.kind(^fd) == socket {
				outside, x.own = socket, true
			}
			continue
		}
		switch kind := x.kind(fd); kind {
		case "tty":
			if tty < 0 {
				tty = fd
			}
		case "":
		case master:
			x.masters = append(x.masters, fd)
		case eventpoll:
			inner, ok := x.epollSet(fd)
			if !ok || len(fds) > maxFDs {
				outside, x.own = kind, true
			}
			for _, fd := range inner {
				if !slices.Contains(fds, fd) {
					fds = append(fds, fd)
				}
			}
		default:
			outside, x.own = kind, x.own || kind != signals
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

// Some of the values that kind returns.
const (
	master    = "a master"
	signals   = "signals"
	socket    = "a socket"
	eventpoll = "eventpoll"
)

// kind returns what fd is: "tty" for our terminal, master for the master of another. It returns ""
// if only another thread or process of this sandbox can make fd ready: pipes, event counters,
// socket pairs, our other terminals. Else it returns a word for a source of events from outside.
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
		if strings.HasSuffix(link, "/ptmx") {
			return master
		}
		if strings.HasPrefix(link, "/dev/pts/") {
			return ""
		}
		return "a device"
	case strings.HasPrefix(link, "pipe:"):
		return ""
	case strings.HasPrefix(link, "socket:"):
		// The protocol of another process's socket is an extended attribute of sockfs.
		var name [32]byte
		n, err := unix.Getxattr(path, "system.sockprotoname", name[:])
		if err == nil && strings.HasPrefix(string(name[:n]), "UNIX") &&
			!x.serves(strings.Trim(link, "socket:[]")) {
			return ""
		}
		return socket
	case strings.HasPrefix(link, "anon_inode:"):
		switch strings.Trim(strings.TrimPrefix(link, "anon_inode:"), "[]") {
		case eventpoll:
			return eventpoll
		case "eventfd", "io_uring", "pidfd":
			return ""
		case "inotify":
			return "inotify"
		case "timerfd":
			return "a timer"
		case "signalfd":
			return signals
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

// serves reports whether a UNIX socket has a name or listens, so that any process may connect to
// it. Event loops do not use such a socket to wake themselves. Of two connected sockets, only the
// server's has a name.
func (x *inspector) serves(inode string) bool {
	b, err := os.ReadFile(x.dir + "/net/unix")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		// Num RefCount Protocol Flags Type St Inode Path; the flag is __SO_ACCEPTCON.
		if f := strings.Fields(line); len(f) > 6 && f[6] == inode {
			return len(f) > 7 || f[3] == "00010000"
		}
	}
	return false
}

// peek reads n bytes of the process's memory at addr.
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

// maxFDs limits the descriptors that are inspected per wait.
const maxFDs = 1024

// pollSet returns the descriptors of a poll, in the form that sources takes. The memory holds
// structs pollfd: int fd, short events, short revents.
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
		if fd < 0 {
			continue
		}
		if events&(unix.POLLIN|pollRdNorm) == 0 {
			fd = ^fd
		}
		fds = append(fds, int(fd))
	}
	return fds, true
}

// selectSets returns the descriptors of a select, in the form that sources takes.
func (x *inspector) selectSets(a arguments) (fds []int, ok bool) {
	fds, ok = x.selectSet(a[0], a[1])
	for _, addr := range a[2:4] {
		more, readable := x.selectSet(a[0], addr)
		ok = ok && readable
		for _, fd := range more {
			fds = append(fds, ^fd)
		}
	}
	return fds, ok
}

// selectSet returns the descriptors below n in the set at addr.
func (x *inspector) selectSet(n, addr uint64) (fds []int, ok bool) {
	if addr == 0 || n == 0 {
		return nil, true
	}
	if n > maxFDs {
		return nil, false
	}
	b, ok := x.peek(addr, int(n+7)/8) // words of either size, little-endian
	if !ok {
		return nil, false
	}
	for fd := range int(n) {
		if b[fd/8]>>(fd%8)&1 != 0 {
			fds = append(fds, fd)
		}
	}
	return fds, true
}

// epollSet returns the descriptors of an epoll descriptor, in the form that sources takes. It reads
// the lines "tfd: 5 events: 19 …" of its fdinfo.
func (x *inspector) epollSet(ep int) (fds []int, ok bool) {
	b, err := x.read(x.dir + "/fdinfo/" + strconv.Itoa(ep))
	if err != nil || len(b) == len(x.buf) {
		return nil, false // unreadable, or longer than the buffer
	}
	set, ok := parseEpoll(string(b))
	for _, w := range set {
		if fd := x.present(w); !slices.Contains(fds, fd) {
			fds = append(fds, fd)
		}
	}
	return fds, ok
}

// present returns the descriptor that now refers to the file that an epoll descriptor waits for.
// The number is from the registration. It may have been closed since, and reused for another file.
// If there is no descriptor, present returns one that is not open.
func (x *inspector) present(w watched) int {
	if w.ino == 0 || x.holds(w.number(), w) {
		return w.fd
	}
	found := math.MaxInt32
	fds, _ := list(x.dir + "/fd") // empty on error
	for _, fd := range fds {
		if x.holds(fd, w) {
			found = fd
			break
		}
	}
	if w.fd < 0 {
		return ^found
	}
	return found
}

// holds reports whether fd refers to the file of w. All anonymous inodes have the same inode
// number. On an overlay file system, a named pipe has a different number here than in fdinfo.
func (x *inspector) holds(fd int, w watched) bool {
	path := x.dir + "/fd/" + strconv.Itoa(fd)
	link, err := os.Readlink(path)
	if err != nil {
		return false
	}
	if kind, id, ok := strings.Cut(link, ":["); ok && (kind == "pipe" || kind == "socket") {
		return strings.TrimSuffix(id, "]") == strconv.FormatUint(w.ino, 10)
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	dev := uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev)) // as the kernel encodes it
	if st.Ino == w.ino && dev == w.dev {
		return fd == w.number() || !strings.HasPrefix(link, "anon_inode:")
	}
	return fd == w.number() && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// watched is a file that an epoll descriptor waits for.
type watched struct {
	fd       int    // number at the registration, in the form that sources takes
	ino, dev uint64 // 0 if the kernel does not report them
}

func (w watched) number() int { return max(w.fd, ^w.fd) }

func parseEpoll(fdinfo string) (set []watched, ok bool) {
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
		switch {
		case events&unix.EPOLLIN != 0:
		case events&unix.EPOLLHUP != 0:
			// The kernel adds EPOLLHUP to every registration, until EPOLLONESHOT disables it.
			fd = ^fd
		default:
			continue
		}
		w := watched{fd: fd}
		for _, word := range f[4:] {
			if v, ok := strings.CutPrefix(word, "ino:"); ok {
				w.ino, err = strconv.ParseUint(v, 16, 64)
			} else if v, ok := strings.CutPrefix(word, "sdev:"); ok {
				w.dev, err2 = strconv.ParseUint(v, 16, 64)
			}
		}
		if err != nil || err2 != nil {
			return nil, false
		}
		set = append(set, w)
	}
	return set, true
}
