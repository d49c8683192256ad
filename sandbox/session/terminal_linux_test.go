package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/pty"
	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/session/proc"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// ptyTerminal is a session.Local on a real pseudo-terminal of this machine.
type ptyTerminal struct {
	master *os.File
	name   string
	dev    uint64
	cmd    *exec.Cmd
	done   chan struct{}
	exit   session.Exit
	once   sync.Once
}

func startPTY(ctx context.Context, start session.Start) (session.Terminal, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	if err := pty.Setsize(master, &pty.Winsize{Cols: uint16(start.Cols),
		Rows: uint16(start.Rows)}); err != nil {
		master.Close()
		return nil, err
	}
	t := &ptyTerminal{
		master: master,
		name:   slave.Name(),
		done:   make(chan struct{}),
	}
	if info, err := slave.Stat(); err == nil {
		t.dev = info.Sys().(*syscall.Stat_t).Rdev
	}
	argv := start.Argv
	if len(argv) == 0 {
		argv = []string{"/bin/sh"}
	}
	t.cmd = exec.Command(argv[0], argv[1:]...)
	t.cmd.Env = append(os.Environ(), start.Env...)
	t.cmd.Dir = start.Dir
	t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = slave, slave, slave
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	for _, f := range start.Files {
		for len(t.cmd.ExtraFiles) <= f.FD-3 {
			t.cmd.ExtraFiles = append(t.cmd.ExtraFiles, nil)
		}
		t.cmd.ExtraFiles[f.FD-3] = f.File
	}
	if err := t.cmd.Start(); err != nil {
		t.master.Close()
		return nil, err
	}
	go func() { // ends with the process, which Close kills
		defer close(t.done)
		err := t.cmd.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			ws := exit.Sys().(syscall.WaitStatus)
			if ws.Signaled() {
				t.exit.Signal = wire.SignalName(int(ws.Signal()))
				return
			}
			t.exit.Code = ws.ExitStatus()
		}
	}()
	return t, nil
}

func (t *ptyTerminal) Read(p []byte) (int, error)  { return t.master.Read(p) }
func (t *ptyTerminal) Write(p []byte) (int, error) { return t.master.Write(p) }

func (t *ptyTerminal) SetWriteDeadline(
	when time.Time,
) error {
	return t.master.SetWriteDeadline(when)
}
func (t *ptyTerminal) Wait() session.Exit { <-t.done; return t.exit }

func (t *ptyTerminal) control(f func(fd int) error) error {
	conn, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := conn.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

func (t *ptyTerminal) Resize(cols, rows int) error {
	return t.control(func(fd int) error {
		return unix.IoctlSetWinsize(
			fd,
			unix.TIOCSWINSZ,
			&unix.Winsize{Col: uint16(cols), Row: uint16(rows)},
		)
	})
}

func (t *ptyTerminal) TTY() session.TTY {
	return session.TTY{Master: t.master, Name: t.name, Device: t.dev, SessionPID: t.cmd.Process.Pid}
}

func (t *ptyTerminal) Children(pid int) (ended uint64, live bool, err error) {
	return proc.Children(pid)
}

func (t *ptyTerminal) Front() (group int, err error) {
	err = t.control(func(fd int) error {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	return group, err
}

func (t *ptyTerminal) InFront(pid int) (bool, error) { return proc.InFront(pid) }

func (t *ptyTerminal) Above(pid int) []int { return proc.Above(pid) }
func (t *ptyTerminal) Runs(pid int) bool   { return proc.Runs(pid) }

func (t *ptyTerminal) Flush() error {
	slave, err := os.OpenFile(t.name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer slave.Close()
	return unix.IoctlSetInt(int(slave.Fd()), unix.TCFLSH, unix.TCIFLUSH)
}

type process struct{ pid, parent, group, sid int }

func processes() (list []process) {
	dir, _ := os.ReadDir("/proc")
	for _, e := range dir {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if f[0] == "Z" || f[0] == "X" {
			continue
		}
		p := process{pid: pid}
		p.parent, _ = strconv.Atoi(f[1])
		p.group, _ = strconv.Atoi(f[2])
		p.sid, _ = strconv.Atoi(f[3])
		list = append(list, p)
	}
	return list
}

func (t *ptyTerminal) Members(group int) (pids []int, err error) {
	for _, p := range processes() {
		if p.group == group {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

func (t *ptyTerminal) Below(roots []int) (pids []int, err error) {
	for _, p := range processes() {
		if slices.Contains(roots, p.parent) || slices.Contains(pids, p.parent) {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

func (t *ptyTerminal) Tree() (pids []int, err error) {
	for _, p := range processes() {
		if p.sid == t.cmd.Process.Pid || slices.Contains(pids, p.parent) {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

func (t *ptyTerminal) Signal(pid int, sig syscall.Signal) error {
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func (t *ptyTerminal) Close() error {
	t.once.Do(func() {
		t.master.Close()
		for {
			pids, _ := t.Tree()
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			if len(pids) == 0 {
				break
			}
			<-time.After(time.Millisecond) // processes that are not our children end without notice
		}
		<-t.done
	})
	return nil
}

// dial serves one stream of set and returns its other side.
func dial(t *testing.T, set *session.Set, a wire.Attach, h wire.Handler) *wire.Client {
	t.Helper()
	c, err := tryDial(t, set, a, h)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryDial(t *testing.T, set *session.Set, a wire.Attach, h wire.Handler) (*wire.Client, error) {
	t.Helper()
	near, far := socketpair(t)
	served := make(chan error, 1)
	go func() { served <- set.Serve(context.Background(), far, true) }()
	t.Cleanup(func() {
		near.Close()
		select {
		case <-served:
		case <-time.After(time.Minute):
			t.Error("a stream does not end")
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := wire.Open(ctx, near, a, h)
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// socketpair returns a connection with its own buffers, like a real one.
func socketpair(t testing.TB) (a, b *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(
		unix.AF_UNIX,
		unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		0,
	)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
}

func agentParty(name string) *wire.Party {
	return &wire.Party{Name: name, Kind: wire.Agent, Rights: wire.RightDrive}
}

func person(name string) *wire.Party {
	return &wire.Party{Name: name, Kind: wire.Person, Rights: wire.RightDrive}
}
