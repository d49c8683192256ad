package store

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A program that is being started holds all descriptors until it is executed.
func TestReleaseOfASharedDescriptor(t *testing.T) {
	dir := t.TempDir()
	l, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.Dup(int(l.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
	again, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.release(); err != nil {
		t.Error(err)
	}
}
