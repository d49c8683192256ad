//go:build linux

package proc

import (
	"os"
	"runtime"
	"strconv"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// Jobs implements session.JobProber.
func (Prober) Jobs(tty session.TTY) (jobs []session.Job, err error) {
	runtime.LockOSThread() // credentials belong to the thread
	l := &look{}
	defer func() {
		if l.self.restore() {
			runtime.UnlockOSThread() // as in Probe
		}
	}()
	members, err := l.members(tty.SessionPID,
		func(p *process) bool { return p.sid == tty.SessionPID })
	// The shell in front, and all that it runs in.
	shells := map[int]bool{tty.SessionPID: true}
	for pid := tty.Shell; pid > 1 && !shells[pid]; {
		shells[pid] = true
		p, err := l.stat(pid)
		if err != nil {
			break
		}
		pid = p.ppid
	}
	for _, p := range members {
		if shells[p.pid] {
			continue
		}
		l.as(p.pid)
		if j, ok := l.job(p, tty.Name); ok {
			jobs = append(jobs, j)
		}
	}
	return jobs, err
}

// job returns how much a process has written. ok is false for a process that does not print on the
// terminal, and for one that is ending. That one prints no more, and only root can see its files,
// so that it would look hidden.
func (l *look) job(p *process, terminal string) (j session.Job, ok bool) {
	if !prints(p.pid, terminal) {
		return j, false
	}
	j = session.Job{Group: p.pgrp, Hidden: true}
	if b, err := l.read("/proc/" + strconv.Itoa(p.pid) + "/io"); err == nil { // proc_pid_io(5)
		if text, ok := field(string(b), "wchar:"); ok {
			n, err := strconv.ParseUint(text, 10, 64)
			j.Written, j.Hidden = n, err != nil
		}
	}
	now, err := l.stat(p.pid)
	return j, err == nil && !now.ending
}

// prints reports whether standard output or standard error of pid is, or may be, the terminal.
func prints(pid int, terminal string) bool {
	for _, fd := range []string{"1", "2"} {
		to, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + fd)
		if err != nil && !os.IsNotExist(err) || to == terminal {
			return true
		}
	}
	return false
}
