package oci

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// capacity returns what this machine has: processors, bytes of memory, and how many open files a
// process of this daemon may have.
func capacity() (cpus float64, memory, noFile int64, err error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, 0, 0, os.NewSyscallError("sysinfo", err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, 0, 0, fmt.Errorf("open files: %w", os.NewSyscallError("getrlimit", err))
	}
	return float64(runtime.NumCPU()), int64(info.Totalram) * int64(info.Unit),
		int64(min(files.Max, 1<<20)), nil // fs.nr_open
}

// limitsSwap reports whether the kernel limits swap: always with version 2 of control groups, and
// with version 1 if it was started so.
func limitsSwap() bool {
	const v1 = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(v1 + "/memory.limit_in_bytes"); err != nil {
		return true
	}
	_, err := os.Stat(v1 + "/memory.memsw.limit_in_bytes")
	return err == nil
}
