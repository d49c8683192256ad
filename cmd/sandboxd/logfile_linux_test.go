package main

import (
	"io"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCopyLogRejectsFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "daemon.log")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copyLog(t.Context(), io.Discard, path, 1, true); err == nil {
		t.Error("no error for a FIFO")
	}
}
