//go:build linux

package proc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = time.Minute

// terminal is a real terminal with a real program as its session leader.
type terminal struct {
	t   testing.TB
	tty session.TTY
	cmd *exec.Cmd

	mu   sync.Mutex
	out  bytes.Buffer  // guarded by mu
	done chan struct{} // the output has ended
}

func open(t testing.TB, argv ...string) *terminal { return openAs(t, nil, argv...) }

func openAs(t testing.TB, cred *syscall.Credential, argv ...string) *terminal {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(slave.Name(), &st); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "PS1=$ ", "ENV=", "TERM=xterm", "PYTHON_HISTORY=/dev/null", "LANG=C.UTF-8")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: cred}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, cmd: cmd, done: make(chan struct{}),
		tty: session.TTY{Master: master, Name: slave.Name(), Device: st.Rdev, SessionPID: cmd.Process.Pid}}
	slave.Close()
	go func() {
		defer close(x.done)
		io.Copy(x, master)
	}()
	t.Cleanup(func() {
		// The session first, then what is left of it.
		for _, p := range x.tree() {
			syscall.Kill(p, syscall.SIGKILL)
		}
		cmd.Process.Kill()
		cmd.Wait()
		master.Close()
		<-x.done
	})
	return x
}

// Write is for what the terminal prints.
func (x *terminal) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.Write(p)
}

func (x *terminal) output() string { x.mu.Lock(); defer x.mu.Unlock(); return x.out.String() }

func (x *terminal) tree() (pids []int) {
	l := &look{}
	l.walk(x.cmd.Process.Pid, func(p *process) bool { pids = append(pids, p.pid); return true })
	return pids
}

func (x *terminal) typ(text string) {
	x.t.Helper()
	if _, err := io.WriteString(x.tty.Master, text); err != nil {
		x.t.Fatal(err)
	}
}

// until probes until the facts are as wanted, and returns them.
func (x *terminal) until(what string, ok func(session.Facts) bool) session.Facts {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for {
		f, err := Prober{}.Probe(ctx, x.tty)
		if err == nil && ok(f) {
			return f
		}
		if ctx.Err() != nil {
			x.t.Fatalf("never %s: got %+v, %v; terminal %q", what, f, err, x.output())
		}
	}
}

// needs fails the test if a program that it drives is missing.
func needs(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("%s is needed: %v", program, err)
	}
}

// TestBlocked starts programs that end up waiting for a person.
func TestBlocked(t *testing.T) {
	tests := []struct {
		name string
		argv []string
		want wire.Want
		pid  string // argv[0] of the process that reads
	}{
		{"cat", []string{"cat"}, wire.WantLine, "cat"},
		{"tee", []string{"tee", "/dev/null"}, wire.WantLine, "tee"},
		{"bash at its prompt", []string{"bash", "--norc", "-i"}, wire.WantRaw, "bash"},
		{"dash at its prompt", []string{"dash", "-i"}, wire.WantLine, "dash"},
		{"busybox at its prompt", []string{"busybox", "ash", "-i"}, wire.WantRaw, "busybox"},
		{"read", []string{"bash", "-c", "read -p 'x? ' y"}, wire.WantLine, "bash"},
		{"read -s", []string{"bash", "-c", "read -s -p 'x? ' y"}, wire.WantPassword, "bash"},
		{"read -n 1", []string{"bash", "-c", "read -n 1 y"}, wire.WantRaw, "bash"},
		{"select", []string{"bash", "-c", "select x in a b; do :; done"}, wire.WantLine, "bash"},
		{"input", []string{"python3", "-c", "input('name? ')"}, wire.WantLine, "python3"},
		{"input with readline", []string{"python3", "-c", "import readline; input('name? ')"}, wire.WantRaw, "python3"},
		{"getpass", []string{"python3", "-c", "import getpass; getpass.getpass()"}, wire.WantPassword, "python3"},
		{"python", []string{"python3", "-q"}, wire.WantRaw, "python3"},
		{"epoll", []string{"python3", "-c", "import select; e = select.epoll(); e.register(0, select.EPOLLIN); e.poll()"}, wire.WantLine, "python3"},
		{"poll", []string{"python3", "-c", "import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()"}, wire.WantLine, "python3"},
		{"select call", []string{"python3", "-c", "import select; select.select([0], [], [])"}, wire.WantLine, "python3"},
		{"asyncio", []string{"python3", "-c", `
import asyncio, sys
async def main():
    r = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(r), sys.stdin)
    await r.readline()
asyncio.run(main())`}, wire.WantLine, "python3"},
		{"reader beside an idle thread", []string{"python3", "-c", `
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
input()`}, wire.WantLine, "python3"},
		{"perl", []string{"perl", "-e", "<STDIN>"}, wire.WantLine, "perl"},
		{"/dev/tty", []string{"sh", "-c", "cat </dev/tty"}, wire.WantLine, "cat"},
		{"pipeline", []string{"sh", "-c", "cat | grep x"}, wire.WantLine, "cat"},
		{"pipeline of a shell with jobs", []string{"bash", "--norc", "-i", "-c", "cat | grep x"}, wire.WantLine, "cat"},
		{"after a while", []string{"sh", "-c", "(sleep 0.2; read x)"}, wire.WantLine, "sh"},
		{"timeout --foreground", []string{"timeout", "--foreground", "100", "cat"}, wire.WantLine, "cat"},
		{"child in its own session", []string{"sh", "-c", "setsid -w cat; :"}, wire.WantLine, "cat"},
		{"less", []string{"sh", "-c", "seq 1000 | LESS= less"}, wire.WantRaw, "less"},
		{"script", []string{"script", "-qc", "cat", "/dev/null"}, wire.WantLine, "cat"},
		{"script of a shell", []string{"script", "-qc", "bash --norc -i", "/dev/null"}, wire.WantRaw, "bash"},
		{"script in script", []string{"script", "-qc", "script -qc 'bash -c \"read -s x\"' /dev/null", "/dev/null"}, wire.WantPassword, "bash"},
		{"pty.spawn", []string{"python3", "-c", "import pty; pty.spawn(['cat'])"}, wire.WantLine, "cat"},
		{"expect interact", []string{"expect", "-c", "spawn -noecho cat; interact"}, wire.WantLine, "cat"},
		{"sudo", []string{"sudo", "-n", "cat"}, wire.WantLine, "cat"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			needs(t, test.argv[0])
			x := open(t, test.argv...)
			f := x.until("blocked", func(f session.Facts) bool { return f.Blocked && f.Want == test.want && program(f.Argv) == test.pid })
			if f.Listens || f.Pending || f.OnlyTimers {
				t.Errorf("got %+v, want nothing but blocked", f)
			}
			if f.FgCwd == "" || f.ShellCwd == "" || f.Runs == 0 || f.Foreground == 0 {
				t.Errorf("got %+v, want directories, runs and a group", f)
			}
		})
	}
}

// TestNotBlocked starts programs that go on by themselves, or that may.
func TestNotBlocked(t *testing.T) {
	const py = "python3"
	tests := []struct {
		name          string
		argv          []string
		listens, only bool
		why           string
	}{
		{"sleep", []string{"sleep", "100"}, false, false, "nanosleep"},
		{"a loop", []string{"sh", "-c", "while :; do :; done"}, false, false, "running"},
		{"wait", []string{"bash", "-c", "sleep 100 & wait"}, false, false, "nanosleep"},
		{"tail -f", []string{"tail", "-f", "/dev/null"}, false, false, ""},
		{"a socket", []string{py, "-c", "import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()"}, false, false, "socket"},
		{"cat of a busy program", []string{"sh", "-c", "sleep 100 | cat"}, false, false, "nanosleep"},
		{"poll with a timeout", []string{py, "-c", "import select\nwhile 1: select.select([0], [], [], 0.5)"}, true, false, "timeout"},
		{"read -t", []string{"bash", "-c", "read -t 100 x"}, true, false, "timeout"},
		{"keyboard and socket", []string{py, "-c", "import socket, select; s = socket.create_server(('127.0.0.1', 0)); select.select([0, s], [], [])"}, true, false, "socket"},
		{"keyboard beside a timer", []string{py, "-c", `
import threading, time
threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
input()`}, true, false, "nanosleep"},
		{"keyboard beside work", []string{py, "-c", `
import threading
def work():
    while 1: pass
threading.Thread(target=work, daemon=True).start()
input()`}, true, false, ""},
		{"keyboard beside a timed futex", []string{"TIMER"}, true, true, "futex"},
		{"pipeline that works", []string{"sh", "-c", "cat | sh -c 'sleep 100'"}, true, false, "nanosleep"},
		{"script of sleep", []string{"script", "-qc", "sleep 100", "/dev/null"}, false, false, "nanosleep"},
		{"job of a shell", []string{"bash", "--norc", "-i", "-c", "sleep 100"}, false, false, "nanosleep"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.argv[0] == "TIMER" {
				test.argv = []string{py, "-c", `
import threading, ctypes
e = threading.Lock(); e.acquire()
threading.Thread(target=lambda: e.acquire(timeout=1000), daemon=True).start()
input()`}
			}
			needs(t, test.argv[0])
			x := open(t, test.argv...)
			f := x.until("as wanted", func(f session.Facts) bool {
				return f.Listens == test.listens && f.OnlyTimers == test.only && strings.Contains(f.Why, test.why) &&
					(test.listens || f.Why != "")
			})
			// It is that way for good.
			for range 20 {
				f, err := Prober{}.Probe(context.Background(), x.tty)
				if err != nil || f.Blocked {
					t.Fatalf("got %+v, %v, want not blocked", f, err)
				}
			}
			if f.Blocked {
				t.Errorf("got %+v, want not blocked", f)
			}
		})
	}
}

// TestPending types ahead of a program that is not reading yet.
func TestPending(t *testing.T) {
	x := open(t, "sh", "-c", "sleep 0.3; exec python3 -c 'import time; time.sleep(0.3); input(); input()'")
	x.until("sleeping", func(f session.Facts) bool { return strings.Contains(f.Why, "nanosleep") })
	x.typ("one\ntwo")
	x.until("pending", func(f session.Facts) bool { return f.Pending && !f.Blocked })
	// The first line is taken; the second is not complete, so it is not pending.
	x.until("blocked", func(f session.Facts) bool { return f.Blocked && !f.Pending && program(f.Argv) == "python3" })
}

// TestKeystroke follows a program from one question to the next: a look right after an answer does not say that it waits
// before it has read it, or says so with the run count of the wait before.
func TestKeystroke(t *testing.T) {
	x := open(t, "bash", "-c", "i=0; while read x; do i=$((i+1)); echo got$i; done")
	ctx := context.Background()
	runs := x.until("blocked", func(f session.Facts) bool { return f.Blocked }).Runs
	for i := 1; i <= 200; i++ {
		x.typ("y\n")
		for {
			f, err := Prober{}.Probe(ctx, x.tty)
			if err != nil {
				t.Fatal(err)
			}
			if !f.Blocked || f.Runs == runs {
				continue // the answer is still on its way through the terminal
			}
			runs = f.Runs
			break
		}
		// The answer was printed before the program waited again.
		want := fmt.Sprintf("got%d\r\n", i)
		for end := time.Now().Add(deadline); !strings.Contains(x.output(), want); {
			if time.Now().After(end) {
				t.Fatalf("answer %d: said blocked before it was read; terminal %q", i, x.output())
			}
		}
	}
}

// TestForeground tells the shell from its jobs.
func TestForeground(t *testing.T) {
	dir := t.TempDir()
	x := open(t, "bash", "--norc", "-i")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground && f.Pid == x.tty.SessionPID })
	x.typ("cd " + dir + "; cat\n")
	f := x.until("cat", func(f session.Facts) bool { return f.Blocked && program(f.Argv) == "cat" })
	if f.ShellIsForeground || f.Pid == x.tty.SessionPID || f.Foreground != f.Pid || f.FgCwd != dir || f.ShellCwd != dir {
		t.Errorf("got %+v, want cat in front in %s", f, dir)
	}
	x.typ("\x1a")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground })
	x.typ("cat &\n") // stopped by reading in the background
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground })
	x.typ("fg %1\n")
	x.until("cat", func(f session.Facts) bool { return f.Blocked && program(f.Argv) == "cat" })
}

// TestResumed stops and continues a program in poll, which the kernel shows as another call afterwards.
func TestResumed(t *testing.T) {
	x := open(t, "bash", "--norc", "-i")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked })
	x.typ("python3 -c 'import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()'\n")
	x.until("python", func(f session.Facts) bool { return f.Blocked && program(f.Argv) == "python3" })
	x.typ("\x1a")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground })
	x.typ("fg\n")
	x.until("python", func(f session.Facts) bool { return f.Blocked && program(f.Argv) == "python3" })
}

// TestOpaque gives a program the name of one that passes the keyboard to another machine.
func TestOpaque(t *testing.T) {
	needs(t, "cat")
	cat, _ := exec.LookPath("cat")
	link := filepath.Join(t.TempDir(), "ssh")
	if err := os.Symlink(cat, link); err != nil {
		t.Fatal(err)
	}
	x := open(t, link)
	f := x.until("opaque", func(f session.Facts) bool { return f.Opaque })
	if f.Blocked || !f.Listens {
		t.Errorf("got %+v, want listening", f)
	}
}

// TestOtherUser looks at programs of another user without the capability to trace them.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test is for root, as which the guest runs")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with this test
	dropTrace(t)
	x := openAs(t, &syscall.Credential{Uid: 12345, Gid: 23456}, "cat")
	f := x.until("blocked", func(f session.Facts) bool { return f.Blocked })
	if f.FgCwd == "" {
		t.Errorf("got %+v, want a directory", f)
	}
	if uid, _ := unix.SetfsuidRetUid(-1); uid != 0 {
		t.Errorf("this thread is left with the file access of user %d", uid)
	}

	// One that changed its user cannot be looked into: the modes are still known.
	y := openAs(t, nil, "python3", "-c", "import os, getpass; os.setresuid(0, 12345, 0); getpass.getpass()")
	for end := time.Now().Add(deadline); ; {
		f, err := Prober{}.Probe(context.Background(), y.tty)
		if err != nil && f.Want == wire.WantPassword && f.Foreground == y.tty.SessionPID && f.Pid == f.Foreground {
			if f.Blocked || !strings.Contains(err.Error(), "may not look into") {
				t.Errorf("got %+v, %v", f, err)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got %+v, %v, want a refusal; terminal %q", f, err, y.output())
		}
	}
}

// TestChangedUser looks, with the capability, at programs that have changed their user while they ran, as apt's do: their
// files in /proc are root's although the directory is not.
func TestChangedUser(t *testing.T) {
	for name, change := range map[string]string{
		"for good":    "os.setresgid(23456, 23456, 23456); os.setresuid(12345, 12345, 12345)",
		"for a while": "os.setresuid(0, 12345, 0)",
	} {
		t.Run(name, func(t *testing.T) {
			x := open(t, "python3", "-c", "import os; "+change+"; input()")
			f := x.until("blocked", func(f session.Facts) bool { return f.Blocked })
			if f.Want != wire.WantLine {
				t.Errorf("got %+v, want a line", f)
			}
		})
	}
}

// dropTrace takes CAP_SYS_PTRACE from this thread and what it starts.
func dropTrace(t *testing.T) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0); err != nil {
		t.Fatal(err) // else a child of root has it back at exec
	}
	data[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	data[0].Permitted &^= 1 << unix.CAP_SYS_PTRACE
	data[0].Inheritable &^= 1 << unix.CAP_SYS_PTRACE
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// TestGone looks at terminals on which nobody is left.
func TestGone(t *testing.T) {
	x := open(t, "true")
	x.cmd.Wait()
	f, err := Prober{}.Probe(context.Background(), x.tty)
	if f.Blocked || f.Listens {
		t.Errorf("got %+v, %v, want nobody", f, err)
	}
	x.tty.Master.Close()
	if f, err := (Prober{}).Probe(context.Background(), x.tty); err == nil {
		t.Errorf("closed master: got %+v, want an error", f)
	}
}

func TestCancel(t *testing.T) {
	x := open(t, "cat")
	x.until("blocked", func(f session.Facts) bool { return f.Blocked })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := (Prober{}).Probe(ctx, x.tty); err == nil {
		t.Error("got no error from a probe that was cancelled")
	}
}

func TestParseStat(t *testing.T) {
	p, err := parseStat(7, []byte("7 (a) b) (c) S 1 7 6 34817 8 4194304 0"))
	if err != nil || p.ppid != 1 || p.pgrp != 7 || p.sid != 6 || p.tpgid != 8 || p.state != 'S' || p.tty != unix.Mkdev(136, 1) {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err := parseStat(7, []byte("7 (x) S 1 7 6 1083312 -1 0")); err != nil || p.tty != unix.Mkdev(135, 256+0xb0) || p.tpgid != -1 {
		t.Errorf("large minor: got %+v, %v", p, err)
	}
	for _, bad := range []string{"", "7", "7 (x", "7 (x) S 1 2", "7 (x) S a b c d e f"} {
		if p, err := parseStat(7, []byte(bad)); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, p)
		}
	}
}
