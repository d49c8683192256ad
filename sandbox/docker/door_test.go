package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func testDoor(t *testing.T, dir string) *door {
	t.Helper()
	d, err := openDoor(dir, socketName, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

// call dials the socket of a directory whose path may be too long for an address.
func call(t *testing.T, dir string) net.Conn {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), socketName))
		if errors.Is(err, syscall.EAGAIN) { // as many wait already as may; the guest would wait, see its dial
			runtime.Gosched()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// hungUp returns when the other side of conn has closed it.
func hungUp(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read: got error %v, want the end of the connection", err)
	}
}

func take(t *testing.T, d *door) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := d.take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// A state directory may have a path longer than sun_path, and an old daemon's socket in it.
func TestDoor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	old, err := openDoor(dir, socketName, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	old.close()
	if _, err := os.Lstat(filepath.Join(dir, socketName)); err != nil {
		t.Fatalf("the old socket should still lie there, as after a kill: %v", err)
	}
	d := testDoor(t, dir)
	info, err := os.Lstat(filepath.Join(dir, socketName))
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("socket: got mode %v, error %v; want 0600", info.Mode(), err)
	}
	ours := call(t, dir)
	io.WriteString(ours, "hello")
	theirs := take(t, d)
	b := make([]byte, 5)
	if _, err := io.ReadFull(theirs, b); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v; want what the guest sent", b, err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errGuestEnded)
	defer cancel()
	if _, err := d.take(ctx); !errors.Is(err, errGuestEnded) {
		t.Errorf("nobody waits: got error %v, want the cause of the context", err)
	}
}

func TestDoorAdmitsOneProcess(t *testing.T) {
	dir := t.TempDir()
	d := testDoor(t, dir)
	early := call(t, dir)
	waits(t, d)
	d.admit(os.Getpid() + 1)
	hungUp(t, early)
	hungUp(t, call(t, dir))
	d.admit(os.Getpid())
	call(t, dir)
	take(t, d)
	d.admit(0)
	call(t, dir)
	take(t, d)
}

func waits(t *testing.T, d *door) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.wait(ctx); err != nil {
		t.Fatal(err)
	}
}

// Who hung up while waiting is not handed out, and a caller that dials without end takes no more than its places.
func TestDoorQueue(t *testing.T) {
	dir := t.TempDir()
	d := testDoor(t, dir)
	dead := call(t, dir)
	waits(t, d)
	dead.Close()
	alive := call(t, dir)
	conn := take(t, d)
	io.WriteString(alive, "x")
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("got a connection that had ended: %v", err)
	}
	first := call(t, dir)
	for range maxWaiting {
		call(t, dir)
	}
	hungUp(t, first)
	if got := len(d.waiting); got > maxWaiting {
		t.Errorf("got %d waiting, want at most %d", got, maxWaiting)
	}
}

// Root in the sandbox can call without end. What such calls cost the daemon is bounded by their rate, and the guest's own calls
// are never kept waiting by the daemon.
func TestDoorPacesStrangers(t *testing.T) {
	for _, test := range []struct {
		name  string
		admit int // 0: nobody is known
		paced bool
	}{{"guest", os.Getpid(), false}, {"strangers", os.Getpid() + 1, true}, {"nobody is known", 0, true}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			d, err := newDoor(dir, socketName, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			rests := 0 // of the goroutine that accepts, which close waits for
			d.rest = func(time.Duration) { rests++ }
			if test.admit != 0 {
				d.admit(test.admit)
			}
			began := time.Now()
			d.wg.Go(d.accept)
			const calls = 3 * strangersBurst
			for range calls {
				conn := call(t, dir)
				if test.admit == os.Getpid() {
					take(t, d).Close()
				} else if test.admit != 0 {
					hungUp(t, conn)
				}
				conn.Close()
			}
			// The backlog is taken in order: what comes through now is behind all of them.
			d.admit(os.Getpid())
			call(t, dir)
			take(t, d)
			d.close()
			if !test.paced {
				if rests != 0 {
					t.Errorf("the guest's calls were kept waiting %d times", rests)
				}
				return
			}
			// Each call that finds no token left is followed by a rest. The last ones may be accepted as the guest's.
			allowed := strangersBurst + strangersRate*time.Since(began).Seconds() + doorBacklog + 1
			if least := int(calls - allowed - 1); rests < least {
				t.Errorf("got %d rests, want at least %d", rests, least)
			}
		})
	}
}

// However fast others call, few of them wait at a time, and who waits behind them has its turn.
func TestDoorBacklog(t *testing.T) {
	dir := t.TempDir()
	d, err := newDoor(dir, socketName, slog.New(slog.DiscardHandler)) // nobody accepts yet
	if err != nil {
		t.Fatal(err)
	}
	d.admit(os.Getpid())
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	waiting := 0
	for ; ; waiting++ {
		conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), socketName))
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if waiting > doorBacklog+1 {
		t.Errorf("%d calls wait to be accepted, want at most %d", waiting, doorBacklog+1)
	}
	d.wg.Go(d.accept)
	take(t, d)
	d.close()
}

func TestDoorClose(t *testing.T) {
	dir := t.TempDir()
	d, err := openDoor(dir, socketName, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	conn := call(t, dir)
	taken := make(chan error, 1)
	waits(t, d)
	d.clear()
	go func() { _, err := d.take(context.Background()); taken <- err }()
	d.close()
	if err := <-taken; !errors.Is(err, errDoorClosed) {
		t.Errorf("take: got error %v, want %v", err, errDoorClosed)
	}
	hungUp(t, conn)
}

// The directory is ours; a link in its place is not followed.
func TestDoorNoLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "run")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if d, err := openDoor(link, socketName, slog.New(slog.DiscardHandler)); err == nil {
		d.close()
		t.Error("got no error from a symbolic link")
	}
}
