package oci

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// process is the first process of a container. Its start tells it from a later process with the
// same number. The zero value does not run.
type process struct {
	pid   int
	start string // the machine's boot, and field starttime of proc_pid_stat(5)
}

// processOf returns the running process pid.
func processOf(pid int) (process, error) {
	start, err := startOf(pid)
	return process{pid, start}, err
}

// startOf returns when a process started. It returns ErrStopped for one that has ended, also if
// its parent has not waited for it.
func startOf(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", fmt.Errorf("%w: %w", sandbox.ErrStopped, err)
	}
	// The fields follow the name, which may contain anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", sandbox.ErrStopped
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(boot)) + "/" + fields[19], nil
}

func (p process) runs() bool {
	if p.pid == 0 {
		return false
	}
	start, err := startOf(p.pid)
	return err == nil && start == p.start
}

// wait waits until the process has ended, or ctx.
func (p process) wait(ctx context.Context) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil && !p.runs() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.pid, os.NewSyscallError("pidfd_open", err))
	}
	// PIDFD_NONBLOCK is of Linux 5.10.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fmt.Errorf("wait for process %d: %w", p.pid, os.NewSyscallError("fcntl", err))
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { file.Close() })
	defer stop()
	// It becomes readable when the process ends (pidfd_open(2)).
	if err := conn.Read(func(uintptr) bool { return !p.runs() }); err != nil && ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// store writes the process to path, for a later daemon.
func (p process) store(path string) error {
	return os.WriteFile(path, fmt.Appendf(nil, "%d %s\n", p.pid, p.start), 0o600)
}

// readProcess reads what store wrote. It returns the zero value if there is none.
func readProcess(path string) (p process) {
	text, err := os.ReadFile(path)
	if fields := strings.Fields(string(text)); err == nil && len(fields) == 2 {
		p.pid, _ = strconv.Atoi(fields[0])
		p.start = fields[1]
	}
	return p
}
