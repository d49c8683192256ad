//go:build linux

package proc

import (
	"os"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/pty"
)

// Output is unread from its write until it is read, also before a worker of the kernel has passed
// it to the master.
func TestUnread(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	fd := int(master.Fd())
	if unread(os.Getpid(), fd) {
		t.Fatal("unread before any output")
	}
	for range 1000 {
		if _, err := slave.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if !unread(os.Getpid(), fd) {
			t.Fatal("not unread after a write")
		}
		if _, err := master.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		if unread(os.Getpid(), fd) {
			t.Fatal("unread after a read")
		}
	}
}
