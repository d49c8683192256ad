package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// SetHostname sets the host name of the container ref; pid is its first process.
func SetHostname(pid int, ref, name string) error {
	if pid == 0 || ref == "" {
		return fmt.Errorf("%w: the guest's process is not known", sandbox.ErrUnsupported)
	}
	// What is read below is that of one process, also if its number is reused meanwhile.
	proc, err := os.OpenRoot("/proc/" + strconv.Itoa(pid))
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrStopped, err)
	}
	defer proc.Close()
	groups, err := proc.ReadFile("cgroup")
	if err != nil || !bytes.Contains(groups, []byte(ref)) {
		return fmt.Errorf("%w: process %d belongs to something else", sandbox.ErrStopped, pid)
	}
	dir, err := proc.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	space, err := unix.Openat(int(dir.Fd()), "ns/uts", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return lacking("open", err)
	}
	defer unix.Close(space)
	var theirs, ours unix.Stat_t
	if err := errors.Join(unix.Fstat(space, &theirs),
		unix.Stat("/proc/self/ns/uts", &ours)); err != nil {
		return err
	}
	if theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		return errors.New("the container has no host name of its own")
	}
	done := make(chan error)
	go func() {
		// The thread stays locked, so that it ends with the goroutine: nothing else runs in the
		// container's namespace (setns(2)).
		runtime.LockOSThread()
		if err := unix.Setns(space, unix.CLONE_NEWUTS); err != nil {
			done <- lacking("setns", err)
			return
		}
		done <- os.NewSyscallError("sethostname", unix.Sethostname([]byte(name)))
	}()
	return <-done
}

// lacking wraps ErrUnsupported if err says that the daemon lacks a right.
func lacking(call string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: %w", sandbox.ErrUnsupported, os.NewSyscallError(call, err))
	}
	return os.NewSyscallError(call, err)
}
