package docker

import (
	"encoding/json"
	"os"
	"time"

	"github.com/moby/profiles/seccomp"
	"golang.org/x/sys/unix"
)

// systemCalls returns Docker's seccomp profile.
func systemCalls() ([]byte, error) { return json.Marshal(seccomp.DefaultProfile()) }

// kernelRelease returns what uname -r prints; empty if unknown.
func kernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// sinceBoot returns how long this machine runs, suspended times included.
func sinceBoot() (time.Duration, error) {
	var since unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &since)
	return time.Duration(since.Nano()), os.NewSyscallError("clock_gettime", err)
}

// freeIn returns the bytes that are free in the file system of a directory.
func freeIn(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
