//go:build unix

package admission

import "syscall"

// MaxFiles returns how many files this process may open; 0 if that is unknown.
func MaxFiles() int64 {
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) != nil {
		return 0
	}
	return int64(min(files.Cur, 1<<30))
}
