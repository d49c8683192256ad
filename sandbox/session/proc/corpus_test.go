//go:build linux

package proc

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// verdict is what a probe must find a program doing.
type verdict int

const (
	runs    verdict = iota // continues without input
	blocked                // waits for input
	listens                // reads the keyboard and may continue without
	timers                 // the same, with only timed futexes besides
)

func (v verdict) String() string {
	return [...]string{"runs", "blocked", "listens", "listens beside timers"}[v]
}

func verdictOf(f session.Facts) verdict {
	switch {
	case f.Blocked:
		return blocked
	case f.OnlyTimers:
		return timers
	case f.Listens:
		return listens
	}
	return runs
}

// corpusCase is a program and what a probe must find it doing.
type corpusCase struct {
	name string
	argv []string
	is   verdict
	want wire.Want // empty if it runs
	who  string    // argv[0] of the reader; a word of Why if it runs
}

func sh(script string) []string     { return []string{"sh", "-c", script} }
func bash(script string) []string   { return []string{"bash", "--norc", "-c", script} }
func python(script string) []string { return []string{"python3", "-c", script} }

// source is python that waits for the keyboard and for one more descriptor.
func source(make string) []string {
	return python(`
import ctypes, os, select, socket
libc = ctypes.CDLL(None)
more = ` + make + `
p = select.poll()
p.register(0, select.POLLIN)
p.register(more, select.POLLIN)
p.poll()`)
}

// timed is python that reads the keyboard and has a timer with a notification of sigevent(7).
func timed(notify int) []string {
	return python(`
import ctypes, os
event = (ctypes.c_int * 16)(0, 0, 14, ` + strconv.Itoa(notify) + `)
timer = ctypes.c_void_p()
if ctypes.CDLL(None).timer_create(1, event, ctypes.byref(timer)): raise OSError
os.read(0, 10)`)
}

// forked is python that starts a program on another terminal with master fd, and then does work.
func forked(script, work string) []string {
	return python(`
import os, pty
pid, fd = pty.fork()
if pid == 0: os.execvp("sh", ["sh", "-c", "exec ` + script + `"])
` + work)
}

// beside is a thread that reads what the program of forked prints.
const beside = "import threading; threading.Thread(target=lambda: os.read(fd, 100) and os.read(fd, 100), daemon=True).start()\n"

// supervisor is python in which one thread reads the keyboard and another waits for a program.
func supervisor(script, how string) []string {
	return python(`
import os, subprocess, sys, threading
p = subprocess.Popen(["sh", "-c", "` + script + `"], ` + how + `)
threading.Thread(target=lambda: os.read(0, 1), daemon=True).start()
p.wait()`)
}

// nested is python that waits for one epoll with another in it, which waits for the descriptors.
func nested(fds string) []string {
	return python(`
import ctypes, select
inner, outer = select.epoll(), select.epoll()
for fd in [` + fds + `]: inner.register(fd, select.EPOLLIN)
outer.register(inner.fileno(), select.EPOLLIN)
outer.poll()`)
}

// orphaned is python in which only a second thread still runs, which does work.
func orphaned(work string) []string {
	return python(`
import ctypes, os, threading, time
def work():
    while "Z" not in open("/proc/self/stat").read().split(")")[1][:3]: time.sleep(0.01)
    ` + work + `
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(` + strconv.Itoa(unix.SYS_EXIT) + `, 0)`)
}

var corpus = []corpusCase{
	// Shells and basic tools.
	{"cat", []string{"cat"}, blocked, wire.WantLine, "cat"},
	{"tee", []string{"tee", "/dev/null"}, blocked, wire.WantLine, "tee"},
	{"bash at its prompt", []string{"bash", "--norc", "-i"}, blocked, wire.WantRaw, "bash"},
	{"dash at its prompt", []string{"dash", "-i"}, blocked, wire.WantLine, "dash"},
	{"busybox at its prompt", []string{"busybox", "ash", "-i"}, blocked, wire.WantRaw, "busybox"},
	{"read -p", bash("read -p 'x? ' y"), blocked, wire.WantLine, "bash"},
	{"read -s", bash("read -s -p 'x? ' y"), blocked, wire.WantPassword, "bash"},
	{"read -n 1", bash("read -n 1 y"), blocked, wire.WantRaw, "bash"},
	{"read -t", bash("read -t 100 x"), listens, wire.WantLine, "bash"},
	{"select of a shell", bash("select x in a b; do :; done"), blocked, wire.WantLine, "bash"},
	{"/dev/tty", sh("cat </dev/tty"), blocked, wire.WantLine, "cat"},
	{"pipeline", sh("cat | grep x"), blocked, wire.WantLine, "cat"},
	{"pipeline of a shell with jobs", []string{"bash", "--norc", "-i", "-c", "cat | grep x"}, blocked, wire.WantLine, "cat"},
	{"pipeline that works", sh("cat | sh -c 'sleep 100'"), listens, wire.WantLine, "cat"},
	{"after a while", sh("(sleep 0.2; read x)"), blocked, wire.WantLine, "sh"},
	{"timeout --foreground", []string{"timeout", "--foreground", "100", "cat"}, blocked, wire.WantLine, "cat"},
	{"child in its own session", sh("setsid -w cat; :"), blocked, wire.WantLine, "cat"},
	{"strace", []string{"strace", "-fo", "/dev/null", "cat"}, blocked, wire.WantLine, "cat"},

	// Languages.
	{"python: input", python("input('name? ')"), blocked, wire.WantLine, "python3"},
	{"python: input with readline", python("import readline; input('name? ')"), blocked, wire.WantRaw, "python3"},
	{"python: getpass", python("import getpass; getpass.getpass()"), blocked, wire.WantPassword, "python3"},
	{"python: REPL", []string{"python3", "-q"}, blocked, wire.WantRaw, "python3"},
	{"python: asyncio", python(`
import asyncio, sys
async def main():
    r = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(r), sys.stdin)
    await r.readline()
asyncio.run(main())`), blocked, wire.WantLine, "python3"},
	{"python: idle thread",
		python(
			"import threading; threading.Thread(target=threading.Event().wait, " +
				"daemon=True).start(); input()"),
		blocked, wire.WantLine, "python3"},
	{"perl", []string{"perl", "-e", "<STDIN>"}, blocked, wire.WantLine, "perl"},
	{"node: REPL", []string{"node", "--no-memory-reducer"}, blocked, wire.WantRaw, "node"},
	{"node: REPL of which V8 counts the seconds until it collects", []string{"node"}, listens, wire.WantRaw, "node"}, // for eight, or for minutes
	{"node: question", []string{"node", "-e", `
const r = require("readline").createInterface({input: process.stdin, output: process.stdout})
r.question("name? ", () => r.close())`}, blocked, wire.WantRaw, "node"},
	{"node: data", []string{"node", "-e", `process.stdin.on("data", () => {})`}, blocked, wire.WantLine, "node"},
	{"go: Scanln", []string{"GO"}, timers, wire.WantLine, "scan"},
	{"java: Scanner", []string{"JAVA"}, timers, wire.WantLine, "java"},

	// System calls, and other descriptors that a program waits for besides the keyboard. Wake-ups
	// within the program do not count.
	{"select", python("import select; select.select([0], [], [])"), blocked, wire.WantLine, "python3"},
	{"poll", python("import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()"), blocked, wire.WantLine, "python3"},
	{"epoll", python("import select; e = select.epoll(); e.register(0, select.EPOLLIN); e.poll()"), blocked, wire.WantLine, "python3"},
	{"select with a timeout", python("import select\nwhile 1: select.select([0], [], [], 0.5)"), listens, wire.WantLine, "python3"},
	{"poll with a timeout", python("import select\np = select.poll(); p.register(0, select.POLLIN)\nwhile 1: p.poll(500)"), listens, wire.WantLine, "python3"},
	{"epoll with a timeout", python("import select\ne = select.epoll(); e.register(0, select.EPOLLIN)\nwhile 1: e.poll(0.5)"), listens, wire.WantLine, "python3"},
	{"keyboard and pipe", source("os.pipe()[0]"), blocked, wire.WantLine, "python3"},
	{"keyboard and event counter", source("os.eventfd(0)"), blocked, wire.WantLine, "python3"},
	{"keyboard and socket pair", source("(pair := socket.socketpair())[0]"), blocked, wire.WantLine, "python3"},
	{"keyboard and server by name", source(
		"(server := socket.socket(socket.AF_UNIX), server.bind(b'\\0corpus-%d' % os.getpid()), " +
			"server.listen())[0]"), listens,
		wire.WantLine, "python3"},
	{"keyboard and server", source("socket.create_server(('127.0.0.1', 0))"), listens, wire.WantLine, "python3"},
	{"keyboard and inotify", source("libc.inotify_init()"), listens, wire.WantLine, "python3"},
	{"keyboard and timer", source("libc.timerfd_create(1, 0)"), listens, wire.WantLine, "python3"},
	{"keyboard and signals", source("libc.signalfd(-1, ctypes.byref((ctypes.c_ulong * 16)(1 << 11)), 0)"), listens, wire.WantLine, "python3"},
	{"keyboard and a connection being made", python(`
import select, socket
full = socket.create_server(("127.0.0.1", 0), backlog=0)
many = [socket.socket() for _ in range(4)]
for s in many:
    s.setblocking(False)
    s.connect_ex(full.getsockname())
p = select.poll()
p.register(0, select.POLLIN)
p.register(many[-1], select.POLLOUT)
p.poll()`), listens, wire.WantLine, "python3"},
	{"epoll of an epoll with the keyboard", nested("0"), blocked, wire.WantLine, "python3"},
	{"epoll of an epoll with the keyboard and a timer", nested("0, ctypes.CDLL(None).timerfd_create(1, 0)"), listens, wire.WantLine, "python3"},
	{"epoll of a duplicate that was closed", python(`
import os, select
e = select.epoll()
fd = os.dup(0)
e.register(fd, select.EPOLLIN)
os.close(fd)
e.poll()`), blocked, wire.WantLine, "python3"},
	{"epoll of a timer whose number a pipe has", python(`
import ctypes, os, select
e, timer = select.epoll(), ctypes.CDLL(None).timerfd_create(1, 0)
fd = os.dup(timer)
e.register(0, select.EPOLLIN)
e.register(fd, select.EPOLLIN)
os.dup2(os.pipe()[0], fd)
e.poll()`), listens, wire.WantLine, "python3"},
	{"a read that ends by itself", sh("stty -icanon min 0 time 255; while :; do head -c 1 >/dev/null; done"), listens, wire.WantRaw, "head"},
	{"first thread has ended", orphaned("os.read(0, 1)"), blocked, wire.WantLine, ""},
	{"first thread has ended, beside work", orphaned("threading.Thread(target=time.sleep, args=(1000,)).start(); os.read(0, 1)"), listens, wire.WantLine, ""},
	{"keyboard beside an orphan", bash("(sleep 1000 &); read x"), listens, wire.WantLine, "bash"},
	{"keyboard beside a sleeper", python(
		"import threading, time; threading.Thread(target=lambda: time.sleep(1000), " +
			"daemon=True).start(); input()"),
		listens, wire.WantLine, "python3"},
	{"keyboard beside work", python(`
import threading
def work():
    while 1: pass
threading.Thread(target=work, daemon=True).start()
input()`), listens, wire.WantLine, "python3"},
	{"keyboard beside a timed futex", python(`
import threading
e = threading.Lock(); e.acquire()
threading.Thread(target=lambda: e.acquire(timeout=1000), daemon=True).start()
input()`), timers, wire.WantLine, "python3"},

	{"keyboard and a timer", timed(0), timers, wire.WantLine, "python3"},
	{"keyboard and a timer that tells nobody", timed(1), blocked, wire.WantLine, "python3"},
	{"preadv2", python(`
import ctypes
class Piece(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("n", ctypes.c_size_t)]
b = ctypes.create_string_buffer(9)
ctypes.CDLL(None).preadv2(0, ctypes.byref(Piece(ctypes.addressof(b), 9)), 1, ctypes.c_long(-1), 0)`), blocked, wire.WantLine, "python3"},
	{"splice", python("import os; os.splice(0, os.pipe()[1], 100)"), listens, wire.WantLine, "python3"},
	{"sendfile", python(`
import ctypes, os
ctypes.CDLL(None).sendfile(os.pipe()[1], 0, None, 100)`), listens, wire.WantLine, "python3"},
	{"keyboard beside a wait for one in a session of its own", supervisor("sleep 1000; :", "start_new_session=True"), listens, wire.WantLine, "python3"},
	{"keyboard beside a wait for one in a group of its own", supervisor("sleep 1000; :", "process_group=0"), listens, wire.WantLine, "python3"},
	{"keyboard beside a wait for one that is at rest", supervisor("read x", "stdin=os.pipe()[0], start_new_session=True"), blocked, wire.WantLine, "python3"},
	{"a reader that is stopped", python(`
import os, signal, subprocess, time
p = subprocess.Popen(["cat"])
while not open("/proc/%d/stat" % p.pid).read().startswith("%d (cat) S" % p.pid): time.sleep(0.01)
os.kill(p.pid, signal.SIGSTOP)
p.wait()`), runs, "", "stopped"},

	// Common interactive programs.
	{"less", sh("seq 1000 | LESS= less"), blocked, wire.WantRaw, "less"},
	{"man", sh("MANPAGER=less PAGER=less man -l page.1"), blocked, wire.WantRaw, "less"},
	{"git log", sh("cd repo && LESS= GIT_PAGER=less git log"), blocked, wire.WantRaw, "less"},
	{"git commit", sh("cd repo && GIT_EDITOR=nano git commit --allow-empty"), blocked, wire.WantRaw, "nano"},
	{"nano", []string{"nano"}, blocked, wire.WantRaw, "nano"},
	{"vim", []string{"vim", "-u", "NONE", "-N"}, listens, wire.WantRaw, "vim"},
	{"top", []string{"top"}, listens, wire.WantRaw, "top"},
	{"gdb", []string{"gdb", "-q", "-nx"}, blocked, wire.WantRaw, "gdb"},
	{"sqlite3", []string{"sqlite3"}, blocked, wire.WantRaw, "sqlite3"},
	{"passwd", []string{"passwd", "nobody"}, blocked, wire.WantPassword, "passwd"},
	{"ssh-keygen", []string{"ssh-keygen", "-t", "ed25519", "-f", "key"}, blocked, wire.WantPassword, "ssh-keygen"},
	{"ssh-keygen: file", []string{"ssh-keygen", "-t", "ed25519"}, blocked, wire.WantLine, "ssh-keygen"},

	// Programs that forward the keyboard to a terminal of their own.
	{"script", []string{"script", "-qc", "cat", "/dev/null"}, blocked, wire.WantLine, "cat"},
	{"script of a shell", []string{"script", "-qc", "bash --norc -i", "/dev/null"}, blocked, wire.WantRaw, "bash"},
	{"script in script", []string{"script", "-qc", "script -qc 'bash -c \"read -s x\"' /dev/null", "/dev/null"}, blocked, wire.WantPassword, "bash"},
	{"script of sleep", []string{"script", "-qc", "sleep 100", "/dev/null"}, runs, "", "nanosleep"},
	{"relay with work of its own", python(`
import os, pty, select, threading, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp("cat", ["cat"])
threading.Thread(target=time.sleep, args=(1000,)).start()
select.select([0, fd], [], [])`), listens, wire.WantLine, "cat"},
	{"question beside a terminal of its own", forked("sleep 1000", "import getpass; getpass.getpass()"), blocked, wire.WantPassword, "python3"},
	{"poller beside a terminal of its own", forked("cat", "import select\nwhile 1: select.select([0], [], [], 0.1)"), listens, wire.WantLine, "python3"},
	{"question beside a reader of a terminal of its own", forked("sleep 1000", beside+"input()"), listens, wire.WantLine, "python3"},
	{"question beside a reader of a terminal that nobody has opened yet", python(`
import os, pty
fd, slave = pty.openpty()
if os.fork() == 0:
    os.setsid()
    while 1: pass
` + beside + `input()`), listens, wire.WantLine, "python3"},
	{"reader and writer of a terminal of its own", forked("cat", beside+"input()"), blocked, wire.WantLine, "cat"},
	{"relay that polls", forked("cat", "import select\nwhile 1: select.select([0, fd], [], [], 0.1)"), listens, wire.WantLine, "cat"},
	{"relay of two, of which one works", forked("cat", `
import select
pid, more = pty.fork()
if pid == 0: os.execvp("sleep", ["sleep", "1000"])
select.select([0, fd, more], [], [])`), listens, wire.WantLine, "cat"},
	{"relay of two, of which one has not come yet", forked("cat", `
import select
more, slave = pty.openpty()
if os.fork() == 0:
    os.setsid()
    while 1: pass
select.select([0, fd, more], [], [])`), listens, wire.WantLine, "cat"},
	{"relay of two that wait", forked("cat", `
import select
pid, more = pty.fork()
if pid == 0: os.execvp("cat", ["cat"])
select.select([0, fd, more], [], [])`), blocked, wire.WantLine, "cat"},
	{"pty.spawn", python("import pty; pty.spawn(['cat'])"), blocked, wire.WantLine, "cat"},
	{"expect interact", []string{"expect", "-c", "spawn -noecho cat; interact"}, blocked, wire.WantLine, "cat"},
	{"unbuffer", []string{"unbuffer", "-p", "cat"}, blocked, wire.WantPassword, "cat"}, // it turns the echo off, on both terminals
	{"sudo", []string{"sudo", "-n", "cat"}, blocked, wire.WantLine, "cat"},
	{"sudo -s", []string{"sudo", "-n", "-s"}, blocked, wire.WantLine, "dash"},
	{"su -l", []string{"su", "-s", "/bin/bash", "-l", "nobody"}, blocked, wire.WantRaw, "-bash"},
	{"su -P", []string{"su", "-s", "/bin/dash", "-P", "nobody"}, blocked, wire.WantLine, "dash"},

	// Programs that do not wait for a person.
	{"sleep", []string{"sleep", "100"}, runs, "", "nanosleep"},
	{"a loop", sh("while :; do :; done"), runs, "", "running"},
	{"wait", bash("sleep 100 & wait"), runs, "", "nanosleep"},
	{"job of a shell", []string{"bash", "--norc", "-i", "-c", "sleep 100"}, runs, "", "nanosleep"},
	{"tail -f", []string{"tail", "-f", "/dev/null"}, runs, "", ""},
	{"yes", []string{"yes"}, runs, "", ""},
	{"copy", sh("exec cat /dev/zero >/dev/null"), runs, "", ""},
	{"cat of a busy program", sh("sleep 100 | cat"), runs, "", "nanosleep"},
	{"watch", []string{"watch", "-n", "100", "true"}, runs, "", "nanosleep"},
	{"poll that does not wait", python("import select\np = select.poll(); p.register(0, select.POLLIN)\nwhile 1: p.poll(0)"), runs, "", ""},
	{"select that does not wait", python("import select\nwhile 1: select.select([0], [], [], 0)"), runs, "", ""},
	{"a socket", python("import socket; socket.create_server(('127.0.0.1', 0)).accept()"), runs, "", "socket"},
	{"development server", []string{"python3", "-m", "http.server", "-b", "127.0.0.1", "0"}, runs, "", "socket"},
	{"asyncio.sleep", python("import asyncio; asyncio.run(asyncio.sleep(1000))"), runs, "", "timeout"},
}

// TestCorpus starts programs on real terminals and probes them.
func TestCorpus(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test is for root, as which the guest runs")
	}
	dir := workbench(t)
	for _, test := range corpus {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			switch test.argv[0] {
			case "GO":
				test.argv = []string{scanner(t, dir)}
			case "JAVA":
				if _, err := exec.LookPath("java"); err != nil {
					t.Skip("java is not on this machine; it is too big for scripts/setup")
				}
				test.argv = []string{"java", "Scan.java"}
			}
			needs(t, test.argv[0])
			x := openIn(t, dir, nil, test.argv...)
			f := x.until(test.is.String(), func(f session.Facts) bool {
				is := verdictOf(f)
				if is == runs {
					return is == test.is && f.Why != "" && strings.Contains(f.Why, test.who)
				}
				return is == test.is && f.Want == test.want && program(f.Argv) == test.who
			})
			if f.Pending || f.Opaque {
				t.Errorf("got %+v, want neither input that is queued nor a relay", f)
			}
			if (f.FgCwd == "" || f.ShellCwd == "") && test.who != "" || f.Foreground == 0 ||
				f.Runs == 0 {
				t.Errorf("got %+v, want directories, a group and runs", f)
			}
			if test.is == blocked {
				return
			}
			// The verdict must not change.
			for range 20 {
				f, err := Prober{}.Probe(context.Background(), x.tty)
				if err != nil || f.Blocked {
					t.Fatalf("got %+v, %v, want not blocked", f, err)
				}
			}
		})
	}
}

// workbench returns a directory with the files that the programs of the corpus use.
func workbench(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"page.1":    ".TH PAGE 1\n.SH NAME\npage \\- a page\n" + strings.Repeat(".PP\nText.\n", 200),
		"Scan.java": "public class Scan { public static void main(String[] a) { new java.util.Scanner(System.in).nextLine(); } }",
		"scan.go":   "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Scanln(new(string)) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	needs(t, "git")
	git := exec.Command("sh", "-c", `git init -q repo && cd repo && git config user.name x && git config user.email x@example.org &&
		for i in $(seq 60); do git commit -q --allow-empty -m "commit $i"; done`)
	git.Dir = dir
	git.Env = append(os.Environ(), "HOME=/nonexistent")
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("git: %v\n%s", err, out)
	}
	return dir
}

// scanner builds a program without the race detector, which would add threads to the reader's.
func scanner(t *testing.T, dir string) string {
	t.Helper()
	build := exec.Command("go", "build", "-o", "scan", "scan.go")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "scan")
}

// TestPasswords runs programs as another user that ask for passwords as root.
func TestPasswords(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test is for root, as which the guest runs")
	}
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	for _, argv := range [][]string{{"sudo", "-k", "true"}, {"su"}, {"passwd"}} {
		t.Run(argv[0], func(t *testing.T) {
			t.Parallel()
			needs(t, argv[0])
			x := openIn(t, "/", nobody, argv...)
			x.until("asking", func(f session.Facts) bool {
				return f.Blocked && f.Want == wire.WantPassword && program(f.Argv) == argv[0]
			})
		})
	}
}
