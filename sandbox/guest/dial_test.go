//go:build linux

package guest

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// If other processes of the sandbox fill the backlog of the daemon's socket, the guest waits behind
// them for its turn.
func TestDialWaitsForItsTurn(t *testing.T) {
	path := filepath.Join(shortdir.New(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if rerr := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 1) }); errors.Join(
		rerr, err) != nil {
		t.Fatal(err)
	}
	others := 0
	for {
		conn, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		others++
	}
	type dialled struct {
		conn *net.UnixConn
		err  error
	}
	got := make(chan dialled)
	go func() {
		conn, err := dial(t.Context(), path)
		got <- dialled{conn, err}
	}()
	for range others + 1 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	d := <-got
	if d.err != nil {
		t.Fatalf("dial: %v, want a connection when there is room", d.err)
	}
	d.conn.Close()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(ctx, path); err == nil {
		t.Error("dial with an ended context: got no error")
	}
}
