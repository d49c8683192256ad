package sshd

import (
	"io/fs"
	"syscall"
	"time"
)

// identityOf returns a file's number, and when its owner or permissions changed last.
func identityOf(info fs.FileInfo) (inode uint64, meta time.Time) {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return sys.Ino, time.Unix(sys.Ctimespec.Unix())
	}
	return 0, time.Time{}
}
