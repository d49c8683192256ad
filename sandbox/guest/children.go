//go:build linux

package guest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// children starts processes and waits for them. No other code of the guest waits: as PID 1 it
// inherits every orphan of the sandbox, and a second waiter would take the statuses of the first.
type children struct {
	all bool // reap every child (PID 1), not only our own

	// reaping is held shared from a fork until the child is in the table, and during a signal to a
	// process ID; exclusively during a reap. So each reaped status belongs to a known child, and no
	// signal reaches a reused ID. Taken before mu.
	reaping sync.RWMutex

	mu     sync.Mutex
	table  map[int]*child // guarded by mu; running ones
	closed bool           // guarded by mu; no further starts

	wg sync.WaitGroup // goroutines that each wait for one child, when !all
}

// child is a process that this guest started.
type child struct {
	pid    int
	done   chan struct{} // closed when it has ended and was reaped
	status unix.WaitStatus
}

// ended reports whether the child has ended; its status is then known.
func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func newChildren(all bool) *children {
	return &children{all: all, table: make(map[int]*child)}
}

// command is a process to start.
type command struct {
	path    string
	argv    []string
	env     []string
	dir     string
	files   []uintptr           // descriptors 0, 1, …; borrowed
	ctty    bool                // files[0] becomes the controlling terminal
	account *syscall.Credential // nil: as ourselves
	ours    bool                // part of the guest: it must outlive programs when memory runs out
}

var errClosed = errors.New("the guest is ending")

// start starts p as the leader of its own session and process group, in dir or, if it cannot be
// entered, in /.
func (c *children) start(p command) (*child, error) {
	c.reaping.RLock()
	defer c.reaping.RUnlock()
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	pid, err := fork(p)
	if err != nil {
		return nil, err
	}
	ch := &child{pid: pid, done: make(chan struct{})}
	c.mu.Lock()
	c.table[pid] = ch
	c.mu.Unlock()
	if !c.all {
		c.wg.Go(func() { c.await(pid) })
	}
	return ch, nil
}

// fork starts p and does not wait for it.
func fork(p command) (pid int, err error) {
	attr := &syscall.ProcAttr{Dir: p.dir, Env: p.env, Files: p.files,
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.ctty, Credential: p.account}}
	pid, err = syscall.ForkExec(p.path, p.argv, attr)
	if (err == syscall.EACCES || err == syscall.ENOENT) && p.dir != "/" && executable(p.path) {
		attr.Dir = "/"
		pid, err = syscall.ForkExec(p.path, p.argv, attr)
	}
	switch {
	case err == syscall.EAGAIN:
		return 0, fmt.Errorf("start %s: %w (%s)", p.path, err, wire.CodeLimitPids)
	case err != nil:
		return 0, fmt.Errorf("start %s: %w", p.path, err)
	}
	if !p.ours {
		raiseOOMScore(pid)
	}
	return pid, nil
}

// raiseOOMScore makes the kernel kill a program, with its children, before the guest when memory
// runs out. Otherwise a hundred small programs would end the sandbox, because the guest is larger
// than each. Children that the program started within the first microseconds are not affected.
func raiseOOMScore(pid int) {
	// Of 1000: as if it used a fifth of the limit more than it does (proc_pid_oom_score_adj(5)).
	const more = 200
	own, _ := os.ReadFile("/proc/self/oom_score_adj")
	score, _ := strconv.Atoi(strings.TrimSpace(string(own)))
	// Any process may raise the value. It fails for programs that have ended, and with gVisor: they
	// keep their value.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid),
		[]byte(strconv.Itoa(min(score+more, 1000))), 0)
}

// await waits for one child of a guest that is not PID 1.
func (c *children) await(pid int) {
	for {
		// WNOWAIT leaves the status to reap, which excludes signals to a reused ID.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	c.reap(pid)
}

// reap collects every ended child, or only pid. PID 1 calls it with -1 at each SIGCHLD.
func (c *children) reap(pid int) {
	c.reaping.Lock()
	defer c.reaping.Unlock()
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return
		}
		c.mu.Lock()
		ch := c.table[got]
		delete(c.table, got)
		c.mu.Unlock()
		if ch != nil { // else an orphan of the sandbox
			ch.status = status
			close(ch.done)
		}
		if pid > 0 {
			return
		}
	}
}

// signal sends sig to the child's process group, unless it has ended.
func (c *children) signal(ch *child, sig syscall.Signal) error {
	c.reaping.RLock()
	defer c.reaping.RUnlock()
	select {
	case <-ch.done:
		return os.ErrProcessDone
	default:
		return unix.Kill(-ch.pid, sig)
	}
}

// close kills every process that a guest inside another program started, and waits for them.
func (c *children) close() {
	c.reaping.Lock() // processes that are being started are now in the table
	c.mu.Lock()
	c.closed = true
	running := make([]*child, 0, len(c.table))
	for _, ch := range c.table {
		running = append(running, ch)
	}
	c.mu.Unlock()
	c.reaping.Unlock()
	for _, ch := range running {
		_ = c.signal(ch, unix.SIGKILL) // ignores those that ended meanwhile
	}
	c.wg.Wait()
}

// pids returns the process IDs of the running children.
func (c *children) pids() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	pids := make([]int, 0, len(c.table))
	for pid := range c.table {
		pids = append(pids, pid)
	}
	return pids
}
