package sshd

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAcknowledged checks that the kernel acknowledges each of a connection's first reads at once.
func TestAcknowledged(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	raw, err := near.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	atOnce := func() (is bool) {
		t.Helper()
		var value int
		var failed error
		if err := raw.Control(func(fd uintptr) {
			value, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK)
		}); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		return value != 0
	}
	reader := firstReads{&conn{Conn: near, raw: raw}}
	for i := range quickReads {
		// As after an answer that was sent.
		_ = raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
		})
		if err != nil || atOnce() {
			t.Fatalf("it cannot be switched off: %v", err)
		}
		if _, err := far.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if !atOnce() {
			t.Fatalf("read %d is not acknowledged at once", i+1)
		}
	}
}

// A new OpenSSH connection must not wait for delayed acknowledgements of 40 ms each. So all that it
// sends, from its first line to the end of its command, is among the first reads.
func TestFreshConnectionIsQuick(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	detour, reads := passOn(t, w.addr)
	c := w.ssh("alice", "-o", "HostKeyAlias=[127.0.0.1]:"+w.port, "demo@127.0.0.1", "true")
	c.Args = replace(c.Args, "Port="+w.port, "Port="+detour)
	if got := outcome(t, c, ""); got.exit != 0 {
		t.Fatalf("got %+v", got)
	}
	if n := reads.Load(); n == 0 || n > quickReads {
		t.Errorf("a login and a command are %d reads, want no more than %d", n, quickReads)
	}
}

// counted counts the reads of a connection.
type counted struct {
	net.Conn
	reads *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(p)
}

// passOn returns the port of a listener that forwards connections to addr, and the number of its
// reads from clients.
func passOn(t testing.TB, addr string) (port string, reads *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	reads = new(atomic.Int64)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(struct{ io.Writer }{to}, from) // ends with either
		to.Close()
		from.Close()
	}
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", addr)
			if err != nil {
				near.Close()
				continue
			}
			all.Go(func() { pass(far, counted{near, reads}) })
			all.Go(func() { pass(near, far) })
		}
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, reads
}
