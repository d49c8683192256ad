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
	runtime.LockOSThread() // credentials are the thread's
	l := &look{}
	defer func() {
		if l.self.restore() {
			runtime.UnlockOSThread() // as in Probe
		}
	}()
	members, err := l.members(tty.SessionPID, func(p *process) bool { return p.sid == tty.SessionPID })
	for _, p := range members {
		l.as(p.pid)
		if p.pid == tty.SessionPID || !prints(p.pid, tty.Name) {
			continue
		}
		j := session.Job{Group: p.pgrp, Hidden: true}
		if b, err := l.read("/proc/" + strconv.Itoa(p.pid) + "/io"); err == nil { // proc_pid_io(5)
			if text, ok := field(string(b), "wchar:"); ok {
				n, err := strconv.ParseUint(text, 10, 64)
				j.Written, j.Hidden = n, err != nil
			}
		}
		jobs = append(jobs, j)
	}
	return jobs, err
}

// prints reports whether standard output or standard error of pid is the terminal, or may be.
func prints(pid int, terminal string) bool {
	for _, fd := range []string{"1", "2"} {
		to, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + fd)
		if err != nil && !os.IsNotExist(err) || to == terminal {
			return true
		}
	}
	return false
}
