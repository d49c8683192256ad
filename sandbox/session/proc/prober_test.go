//go:build linux

package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session"
	inherited "github.com/sandboxd/sandboxd/sandbox/signals"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestMain makes this process adopt orphans, as a session's keeper does.
func TestMain(m *testing.M) {
	inherited.DefaultForChildren()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

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

func open(t testing.TB, argv ...string) *terminal { return openIn(t, "", nil, argv...) }

// openIn starts a program in dir, with the credentials cred.
func openIn(t testing.TB, dir string, cred *syscall.Credential, argv ...string) *terminal {
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
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME=/nonexistent", "PS1=$ ", "ENV=", "TERM=xterm",
		"SHELL=/bin/dash", "PYTHON_HISTORY=/dev/null", "LANG=C.UTF-8")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: cred}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, cmd: cmd, done: make(chan struct{}),
		tty: session.TTY{Master: master, Name: slave.Name(), Device: st.Rdev,
			SessionPID: cmd.Process.Pid}}
	slave.Close()
	go func() {
		defer close(x.done)
		io.Copy(x, master)
	}()
	t.Cleanup(func() {
		// Kill the session first, then its remaining processes.
		for _, p := range x.tree() {
			syscall.Kill(p, syscall.SIGKILL)
		}
		cmd.Process.Kill()
		cmd.Wait()
		master.Close() // ends the read even if a process still has the terminal open
		<-x.done
	})
	return x
}

// Write receives the terminal's output.
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

// until probes until ok accepts the facts, and returns them.
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

// needs fails the test if a required program is missing.
func needs(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("%s is needed: %v", program, err)
	}
}

// TestPending types ahead of a program that does not read yet.
func TestPending(t *testing.T) {
	x := open(t, "sh", "-c",
		"sleep 0.3; exec python3 -c 'import time; time.sleep(0.3); input(); input()'")
	x.until("sleeping", func(f session.Facts) bool { return strings.Contains(f.Why, "nanosleep") })
	x.typ("one\ntwo")
	x.until("pending", func(f session.Facts) bool { return f.Pending && !f.Blocked })
	// The program has read the first line. The second is incomplete, so it is not pending.
	x.until("blocked", func(f session.Facts) bool {
		return f.Blocked && !f.Pending && program(f.Argv) == "python3"
	})
}

// TestKeystroke follows a program from question to question. A probe right after an answer must not
// return the wait before it: the program is not blocked, or Runs differs.
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

// TestForeground distinguishes the shell from its jobs.
func TestForeground(t *testing.T) {
	dir := t.TempDir()
	x := open(t, "bash", "--norc", "-i")
	x.until("prompt", func(f session.Facts) bool {
		return f.Blocked && f.ShellIsForeground && f.Pid == x.tty.SessionPID
	})
	x.typ("cd " + dir + "; cat\n")
	f := x.until("cat", func(f session.Facts) bool { return f.Blocked && program(f.Argv) == "cat" })
	if f.ShellIsForeground || f.Pid == x.tty.SessionPID || f.Foreground != f.Pid ||
		f.FgCwd != dir || f.ShellCwd != dir {
		t.Errorf("got %+v, want cat in front in %s", f, dir)
	}
	x.typ("\x1a")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground })
	x.typ("cat &\n") // stopped by reading in the background
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground })
	x.typ("fg %1\n")
	x.until("cat", func(f session.Facts) bool { return f.Blocked && program(f.Argv) == "cat" })
}

// TestResumed stops and continues a program in poll, which the kernel then shows as another call.
func TestResumed(t *testing.T) {
	x := open(t, "bash", "--norc", "-i")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked })
	x.typ("python3 -c 'import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()'\n")
	x.until("python", func(f session.Facts) bool {
		return f.Blocked && program(f.Argv) == "python3"
	})
	x.typ("\x1a")
	x.until("prompt", func(f session.Facts) bool { return f.Blocked && f.ShellIsForeground })
	x.typ("fg\n")
	x.until("python", func(f session.Facts) bool {
		return f.Blocked && program(f.Argv) == "python3"
	})
}

// TestOpaque gives a program the name of one that forwards the keyboard to another machine.
func TestOpaque(t *testing.T) {
	needs(t, "cat")
	cat, _ := exec.LookPath("cat")
	link := filepath.Join(t.TempDir(), "ssh")
	if err := os.Symlink(cat, link); err != nil {
		t.Fatal(err)
	}
	x := open(t, "sh", "-c", "stty raw; exec "+link)
	f := x.until("opaque", func(f session.Facts) bool { return f.Opaque })
	if f.Blocked || !f.Listens {
		t.Errorf("got %+v, want listening", f)
	}
}

// TestOpaqueAsks gives such a name to a program that asks and has a language runtime.
func TestOpaqueAsks(t *testing.T) {
	dir := t.TempDir()
	source := "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Scanln(new(string)) }\n"
	if err := os.WriteFile(filepath.Join(dir, "scan.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	docker := filepath.Join(dir, "docker")
	if err := os.Rename(scanner(t, dir), docker); err != nil {
		t.Fatal(err)
	}
	x := open(t, "sh", "-c", "stty -echo; exec "+docker)
	// Only a look at a blocked program is made twice: one may have read the terminal's modes before
	// stty changed them, and then have found the program.
	f := x.until("its own question", func(f session.Facts) bool {
		return f.OnlyTimers && program(f.Argv) == "docker" && f.Want == wire.WantPassword
	})
	if f.Opaque {
		t.Errorf("got %+v, want its own question", f)
	}
}

// TestContainer runs a process in a container that reads a terminal with the number of ours.
func TestContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test is for root, as which the guest runs")
	}
	needs(t, "unshare")
	x := open(t, "python3", "-c",
		"import os; r, w = os.pipe(); print('rests', flush=True); os.read(r, 1)")
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
		`mount -t devpts -o newinstance,ptmxmode=666 devpts /dev/pts && mount --bind /dev/pts/ptmx /dev/ptmx && exec python3 -c "$0" $1`, `
import fcntl, os, sys, termios
while True:
    master, slave = os.openpty()
    if os.minor(os.fstat(slave).st_rdev) == int(sys.argv[1]): break
if os.fork() == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    print(os.readlink("/proc/self"), flush=True)
    os.read(slave, 1)
os.wait()`, strconv.Itoa(int(unix.Minor(x.tty.Device))))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(deadline); ; runtime.Gosched() { // it reads
		l := &look{}
		p, err := l.stat(pid)
		if err != nil || time.Now().After(end) {
			t.Fatalf("the other does not read: %+v, %v", p, err)
		}
		if threads, err := l.threads(p, x.tty.Device); err == nil && len(threads) == 1 &&
			threads[0].class == reader {
			break
		}
	}
	x.until("at rest", func(f session.Facts) bool {
		return strings.Contains(x.output(), "rests") &&
			(f.Listens || f.Why == "nobody reads the terminal")
	})
	searchAgain()
	if f, err := (Prober{}).Probe(t.Context(), x.tty); err != nil || f.Listens ||
		f.Pid != x.tty.SessionPID {
		t.Errorf("got %+v, %v, want that nobody reads", f, err)
	}
}

// TestHandsOver probes a tmux client. It does not read its terminal: it gives the descriptor to its
// server.
func TestHandsOver(t *testing.T) {
	needs(t, "tmux")
	dir := t.TempDir()
	socket := filepath.Join(dir, "tmux")
	t.Cleanup(func() { exec.Command("tmux", "-S", socket, "kill-server").Run() })
	x := openIn(t, dir, nil, "tmux", "-S", socket, "-f", "/dev/null", "new-session", "cat")
	f := x.until("opaque", func(f session.Facts) bool { return f.Opaque && f.Listens })
	if f.Blocked || program(f.Argv) != "tmux" || !strings.Contains(f.Why, "server") {
		t.Errorf("got %+v, want the tmux client and its server", f)
	}
}

// TestOtherUser probes programs of another user without the capability to trace them.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test is for root, as which the guest runs")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with this test
	dropTrace(t)
	x := openIn(t, "", &syscall.Credential{Uid: 12345, Gid: 23456}, "cat")
	f := x.until("blocked", func(f session.Facts) bool { return f.Blocked })
	if f.FgCwd == "" {
		t.Errorf("got %+v, want a directory", f)
	}
	if uid, _ := unix.SetfsuidRetUid(-1); uid != 0 {
		t.Errorf("this thread is left with the file access of user %d", uid)
	}

	// A program that changed its user cannot be inspected, but its modes are known.
	y := openIn(t, "", nil, "python3", "-c",
		"import os, getpass; os.setresuid(0, 12345, 0); getpass.getpass()")
	for end := time.Now().Add(deadline); ; {
		f, err := Prober{}.Probe(context.Background(), y.tty)
		if err != nil && f.Want == wire.WantPassword && f.Foreground == y.tty.SessionPID &&
			f.Pid == f.Foreground {
			if f.Blocked || f.Runs == 0 || !strings.Contains(err.Error(), "may not look into") {
				t.Errorf("got %+v, %v", f, err)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("got %+v, %v, want a refusal; terminal %q", f, err, y.output())
		}
	}
}

// TestChangedUser probes, with the capability, programs that changed their user while they ran, as
// apt's do. Root owns their files in /proc, but not the directory.
func TestChangedUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test is for root, as which the guest runs")
	}
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

// dropTrace takes CAP_SYS_PTRACE from this thread and the processes that it starts.
func dropTrace(t *testing.T) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0); err != nil {
		t.Fatal(err) // otherwise a child of root gets it back at exec
	}
	data[0].Effective &^= 1 << unix.CAP_SYS_PTRACE
	data[0].Permitted &^= 1 << unix.CAP_SYS_PTRACE
	data[0].Inheritable &^= 1 << unix.CAP_SYS_PTRACE
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
}

// TestGone probes terminals that no process uses any more.
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
	if err != nil || p.ppid != 1 || p.pgrp != 7 || p.sid != 6 || p.tpgid != 8 || p.state != 'S' ||
		p.tty != unix.Mkdev(136, 1) {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err := parseStat(7, []byte("7 (x) S 1 7 6 1083312 -1 0")); err != nil ||
		p.tty != unix.Mkdev(135, 256+0xb0) || p.tpgid != -1 {
		t.Errorf("large minor: got %+v, %v", p, err)
	}
	for _, bad := range []string{"", "7", "7 (x", "7 (x) S 1 2", "7 (x) S a b c d e f"} {
		if p, err := parseStat(7, []byte(bad)); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, p)
		}
	}
}

// TestStartsProgram has one thread read while another starts a program and waits for it. A list
// from that moment may miss the new program, while all listed threads wait.
func TestStartsProgram(t *testing.T) {
	for range 50 {
		x := open(t, "sh", "-c", "cat | sh -c 'sleep 100; :'")
		for quiet := 0; quiet < 10; {
			f, err := Prober{}.Probe(t.Context(), x.tty)
			if err != nil || f.Blocked {
				t.Fatalf("got %+v, %v, want not blocked", f, err)
			}
			if f.Listens {
				quiet++
			}
		}
	}
}

// TestStill checks that Still is true until a thread of the sleeping program runs or the terminal
// changes.
func TestStill(t *testing.T) {
	for _, test := range []struct {
		name, script string
		wake         func(x *terminal, f session.Facts) error
	}{
		{"a signal", "trap : USR1; sleep 1000; sleep 1000", func(_ *terminal, f session.Facts) error { return syscall.Kill(f.Foreground, syscall.SIGUSR1) }},
		{"a child that ends", "sleep 1000; sleep 1000", func(x *terminal, f session.Facts) error {
			for _, pid := range x.tree() {
				if pid != f.Foreground {
					return syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			return errors.New("there is none")
		}},
		{"one that was started with setsid",
			"setsid sh -c 'trap : USR1; sleep 1000; sleep 1000' & wait",
			func(x *terminal, f session.Facts) error {
				for _, pid := range x.tree() {
					if group, err := syscall.Getpgid(pid); err == nil && group == pid &&
						pid != f.Foreground {
						return syscall.Kill(-pid, syscall.SIGKILL)
					}
				}
				return errors.New("there is none")
			}},
		{"modes", "sleep 1000; :", func(x *terminal, _ session.Facts) error {
			modes, err := unix.IoctlGetTermios(int(x.tty.Master.Fd()), unix.TCGETS)
			if err != nil {
				return err
			}
			modes.Lflag &^= unix.ECHO
			return unix.IoctlSetTermios(int(x.tty.Master.Fd()), unix.TCSETS, modes)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			x := open(t, "sh", "-c", test.script)
			var still func() bool
			f := x.until("asleep", func(f session.Facts) bool {
				if !strings.Contains(f.Why, "nanosleep") && !strings.Contains(
					f.Why, "nobody reads") || f.Still == nil || len(x.tree()) == 0 {
					return false
				}
				before := still
				still = f.Still
				return before != nil && before()
			})
			if err := test.wake(x, f); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(deadline); still(); runtime.Gosched() {
				if time.Now().After(end) {
					t.Fatal("it has run, and is reported asleep")
				}
			}
		})
	}
}

// TestStillBlocked is the same for a program that reads. Still is false once there is input.
func TestStillBlocked(t *testing.T) {
	x := open(t, "cat")
	f := x.until("blocked", func(f session.Facts) bool { return f.Blocked })
	if f.Still == nil || !f.Still() {
		t.Fatalf("got %+v, want still", f)
	}
	x.typ("unfinished")
	if !f.Still() {
		t.Error("an unfinished line moves nobody")
	}
	x.typ("\n")
	for end := time.Now().Add(deadline); f.Still(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it has got a line, and is reported at rest")
		}
	}
}
