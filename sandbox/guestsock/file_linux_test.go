package guestsock

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A guest that passes nothing, or too much, leaves no descriptor behind and blocks no one.
func TestReceiveFile(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	one, three := unix.UnixRights(int(null.Fd())),
		unix.UnixRights(int(null.Fd()), int(null.Fd()), int(null.Fd()))
	for _, tt := range []struct {
		name   string
		rights []byte
		ok     bool
	}{{"one", one, true}, {"none", nil, false}, {"three", three, false}} {
		t.Run(tt.name, func(t *testing.T) {
			ours, theirs := socketPair(t)
			before := len(openFiles(t))
			if _, _, err := theirs.WriteMsgUnix([]byte{0}, tt.rights, nil); err != nil {
				t.Fatal(err)
			}
			f, err := ReceiveFile(t.Context(), ours, "null")
			if (err == nil) != tt.ok {
				t.Errorf("got error %v", err)
			}
			if f != nil {
				f.Close()
			}
			if now := len(openFiles(t)); now != before {
				t.Errorf("%d descriptors became %d", before, now)
			}
		})
	}
	t.Run("closed", func(t *testing.T) {
		ours, theirs := socketPair(t)
		theirs.Close()
		if _, err := ReceiveFile(t.Context(), ours, "null"); err == nil {
			t.Error("got a file without a sender")
		}
	})
}

func socketPair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		unixConn, ok := conn.(*net.UnixConn)
		if !ok {
			t.Fatalf("got %T", conn)
		}
		conns[i] = unixConn
	}
	return conns[0], conns[1]
}

func openFiles(t *testing.T) []os.DirEntry {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return list
}
