//go:build linux

package proc

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
)

// TestJobs finds the processes of a terminal's session that may print on it, including one whose
// parent has ended.
func TestJobs(t *testing.T) {
	x := open(t, "bash", "--norc", "-i")
	jobs := func(what string, ok func([]session.Job) bool) []session.Job {
		t.Helper()
		x.until(what, func(f session.Facts) bool {
			all, err := Prober{}.Jobs(x.tty)
			return err == nil && f.Blocked && f.ShellIsForeground && ok(all)
		})
		all, err := Prober{}.Jobs(x.tty)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	jobs("no job", func(all []session.Job) bool { return len(all) == 0 })
	x.typ("sleep 1000 >/dev/null 2>&1 & setsid -w sleep 1000 >/dev/null 2>&1 & (sleep 1000 &)\n")
	orphan := jobs("the orphan alone", func(all []session.Job) bool { return len(all) == 1 })[0]
	t.Cleanup(func() { syscall.Kill(-orphan.Group, syscall.SIGKILL) })
	if orphan.Group == x.tty.SessionPID || orphan.Hidden {
		t.Errorf("the orphan is %+v", orphan)
	}
	x.typ(
		"(while read -r line; do echo $line; done) < <(until [ -e /dev/null/none ]; do sleep 1000; " +
			"done) &\n")
	all := jobs("a job of two", func(all []session.Job) bool { return len(all) > 2 })
	groups := map[int]bool{}
	for _, j := range all {
		groups[j.Group] = true
	}
	if len(groups) < 2 || !groups[orphan.Group] {
		t.Errorf("jobs are %+v", all)
	}
}

// TestEndedJob ends a process that prints elsewhere, after it was listed. It must not count as a
// job of the terminal, even if we are not root, and the kernel hides where it printed.
func TestEndedJob(t *testing.T) {
	runtime.LockOSThread() // not unlocked: the thread's credentials end with it
	child := exec.Command("sleep", "1000")
	if os.Geteuid() == 0 {
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345,
			Gid: 23456}}
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	l := &look{}
	p, err := l.stat(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	l.as(p.pid)
	if j, ok := l.job(p, "/dev/pts/none"); ok {
		t.Errorf("alive, it is %+v", j)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if j, ok := l.job(p, "/dev/pts/none"); ok {
		t.Errorf("ended, it is %+v", j)
	}
}
