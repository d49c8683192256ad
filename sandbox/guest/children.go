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

// children starts processes and waits for them. It is the one place of the guest that waits: as PID 1 it inherits every
// orphan of the sandbox, and a second waiter would take the status that the first one waits for.
type children struct {
	all bool // reap whatever ends (PID 1), not only our own

	// reaping is held shared from a fork until the child is in the table, and while one is signalled by number; alone
	// while one is reaped. So no status is met that nobody knows yet, and no signal goes to a number used again. Taken
	// before mu.
	reaping sync.RWMutex

	mu     sync.Mutex
	table  map[int]*child // guarded by mu; running ones
	closed bool           // guarded by mu; nothing starts any more

	wg sync.WaitGroup // of those who wait for one child, when !all
}

// child is a process that we started.
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
	ours    bool                // a part of the guest, which outlives programs when memory ends
}

var errClosed = errors.New("the guest is ending")

// start starts p as the leader of its own session and process group. Where dir cannot be entered it begins in /.
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
		expend(pid)
	}
	return pid, nil
}

// expend makes a program, with all that it starts, one that the kernel kills for memory before it kills the guest. Without it a hundred
// small programs would end the sandbox: the guest is the largest among them. What it started before this, within microseconds, is as the
// guest is.
func expend(pid int) {
	// Of 1000: as if it used a fifth of the limit more than it does (proc_pid_oom_score_adj(5)).
	const more = 200
	own, _ := os.ReadFile("/proc/self/oom_score_adj")
	score, _ := strconv.Atoi(strings.TrimSpace(string(own)))
	// Anybody may raise it. What fails is a program that has ended, or gVisor's: they are as they were.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(min(score+more, 1000))), 0)
}

// await waits for one child of a guest that is not PID 1.
func (c *children) await(pid int) {
	for {
		// WNOWAIT leaves the status for reap, which excludes signals to a number that is free again.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	c.reap(pid)
}

// reap collects every child that has ended, or the one that has. PID 1 calls it with -1 at each SIGCHLD.
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
		if ch != nil { // else an orphan that the sandbox left to us
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

// close kills everything that a guest inside another program started, and waits for it.
func (c *children) close() {
	c.reaping.Lock() // what is just being started is in the table, and waited for
	c.mu.Lock()
	c.closed = true
	running := make([]*child, 0, len(c.table))
	for _, ch := range c.table {
		running = append(running, ch)
	}
	c.mu.Unlock()
	c.reaping.Unlock()
	for _, ch := range running {
		_ = c.signal(ch, unix.SIGKILL) // one that ended meanwhile needs none
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
