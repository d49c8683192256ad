//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	ptys "github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

var (
	unixEpoch  = time.Unix(1, 0) // as a deadline: now
	noDeadline time.Time
)

const (
	// closeGrace is how long the processes of a closed session may take to end after HUP.
	closeGrace = 500 * time.Millisecond
	// killTimeout bounds the wait for killed processes: one in an uninterruptible wait may last
	// longer.
	killTimeout = 3 * time.Second
)

// terminal is a session.Local: the master side of a terminal whose process has a keeper as its
// parent.
type terminal struct {
	g       *Guest
	pty     *pty
	session string
	keeper  *child
	tty     session.TTY
	ooms    int // kills by the memory limit before this session
	wg      sync.WaitGroup

	done chan struct{} // closed when the process has ended
	exit session.Exit  // set before done is closed

	mu     sync.Mutex
	reason string // guarded by mu; why the guest ended it
	close  sync.Once
}

var _ session.Local = (*terminal)(nil)

func (t *terminal) Read(p []byte) (int, error)            { return t.pty.Read(p) }
func (t *terminal) Write(p []byte) (int, error)           { return t.pty.Write(p) }
func (t *terminal) SetWriteDeadline(when time.Time) error { return t.pty.SetWriteDeadline(when) }
func (t *terminal) Resize(cols, rows int) error           { return t.pty.resize(cols, rows, 0, 0) }
func (t *terminal) TTY() session.TTY                      { return t.tty }

// Children returns the known state of the children of a shell. See session.Parent.
func (t *terminal) Children(shell int) (ended uint64, live bool, err error) {
	return proc.Children(shell)
}

// Wait returns how the session's process ended.
func (t *terminal) Wait() session.Exit {
	<-t.done
	return t.exit
}

// await waits for the keeper's report of the end.
func (t *terminal) await(report keeperReport) {
	ws, err := report.exit()
	if errors.Is(err, io.EOF) {
		// The keeper was killed, such as by a rescue, so the shell's end would never be reported.
		// Report it now, with all that is on the terminal.
		<-t.keeper.done
		t.sweep(0)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := session.Exit{Reason: t.reason}
	switch {
	case errors.Is(err, io.EOF):
		e.Signal = "KILL"
		if e.Reason == "" {
			e.Reason = "the session's keeper was killed"
		}
	case err != nil:
		e.Signal, e.Reason = "KILL", err.Error()
	case ws.Signaled():
		e.Signal = wire.SignalName(int(ws.Signal()))
		if ws.Signal() == unix.SIGKILL && e.Reason == "" && counters().OOMKills > t.ooms {
			e.Reason = "oom_killed"
		}
	default:
		e.Code = ws.ExitStatus()
	}
	t.exit = e
	close(t.done)
}

// because records why the session is about to end.
func (t *terminal) because(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reason = reason
}

// Front returns the foreground process group.
func (t *terminal) Front() (group int, err error) {
	err = t.pty.ioctl(func(fd int) error {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return group, err
}

// InFront reports whether the group of a process is in the foreground of its own terminal.
func (t *terminal) InFront(pid int) (bool, error) { return proc.InFront(pid) }

// Above returns the processes that a process runs in.
func (t *terminal) Above(pid int) []int { return proc.Above(pid) }

// Runs reports whether a process exists and is not stopped.
func (t *terminal) Runs(pid int) bool { return proc.Runs(pid) }

// Flush drops input that no program has read.
func (t *terminal) Flush() error {
	return t.pty.ioctl(func(fd int) error {
		slave, err := ptys.OpenSlave(fd, t.pty.name)
		if err != nil {
			return err
		}
		defer unix.Close(slave)
		return unix.IoctlSetInt(slave, unix.TCFLSH, unix.TCIFLUSH)
	})
}

// Members returns the processes of a group.
func (t *terminal) Members(group int) ([]int, error) {
	return living(func(p process) bool { return p.group == group }), nil
}

// Below returns the descendants of some processes.
func (t *terminal) Below(pids []int) ([]int, error) { return tree(pids...), nil }

// Tree returns the descendants of the session.
func (t *terminal) Tree() ([]int, error) { return t.tree(), nil }

// tree returns the processes below the keeper, or, if the keeper was killed, those that stayed in
// the session.
func (t *terminal) tree() []int {
	if !t.keeper.ended() {
		return tree(t.keeper.pid)
	}
	return living(func(p process) bool { return p.session == t.tty.SessionPID })
}

// Signal signals one process.
func (t *terminal) Signal(pid int, sig syscall.Signal) error {
	if err := unix.Kill(pid, sig); err != nil && err != unix.ESRCH {
		return err
	}
	return nil
}

// Close hangs up and ends all processes of the session.
func (t *terminal) Close() error {
	t.close.Do(func() {
		for _, pid := range t.tree() {
			_ = unix.Kill(pid, unix.SIGHUP) // ignores those that ended meanwhile, here and below
			_ = unix.Kill(pid, unix.SIGCONT)
		}
		t.pty.Close()
		t.sweep(closeGrace)
		if !t.keeper.ended() {
			_ = t.g.children.signal(t.keeper, unix.SIGKILL)
			<-t.keeper.done
		}
		t.wg.Wait()
		t.g.forget(t)
	})
	return nil
}

// sweep waits until two scans in a row find no process of the session, and kills the rest after the
// grace period. A process that forks faster than the scans fails, too: its children stay below the
// keeper.
func (t *terminal) sweep(grace time.Duration) {
	began := time.Now()
	keeper := t.keeper.done
	for empty, pause := 0, time.Millisecond; empty < 2 && time.Since(began) < grace+killTimeout; {
		left := t.tree()
		if len(left) == 0 {
			empty++
			continue
		}
		empty = 0
		if time.Since(began) >= grace {
			for _, pid := range left {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		select {
		case <-keeper: // its last descendant has ended
			keeper = nil // or it was killed: the rest takes its time
		case <-time.After(pause):
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// counters returns counters of the sandbox's control group, 0 if unknown.
func counters() session.Counters {
	return session.Counters{
		OOMKills:    count("oom_kill", "memory.events", "memory/memory.oom_control"),
		PidsRefused: count("max", "pids.events", "pids/pids.events"),
	}
}

// count returns the number after a key in the first of the files that the control group has.
func count(key string, files ...string) int {
	for _, file := range files {
		b, err := os.ReadFile("/sys/fs/cgroup/" + file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == key {
				n, _ := strconv.Atoi(f[1]) // the kernel writes only numbers
				return n
			}
		}
	}
	return 0
}
