package guestsock

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

var errEnded = errors.New("ended")

func testServer(t *testing.T, dir string) *Server {
	t.Helper()
	d, err := Listen(dir, SSH, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// call dials the socket of a directory, whose path may be too long for an address.
func call(t *testing.T, dir string) net.Conn {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), SSH))
		if errors.Is(err, syscall.EAGAIN) { // the backlog is full; a guest would wait, see its dial
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

// hungUp returns when the peer has closed conn.
func hungUp(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read: got error %v, want the end of the connection", err)
	}
}

func take(t *testing.T, d *Server) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := d.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// A state directory may have a path longer than sun_path, and may contain an old daemon's socket.
func TestServer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	old, err := Listen(dir, SSH, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	old.Close()
	if _, err := os.Lstat(filepath.Join(dir, SSH)); err != nil {
		t.Fatalf("the old socket should still lie there, as after a kill: %v", err)
	}
	d := testServer(t, dir)
	info, err := os.Lstat(filepath.Join(dir, SSH))
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
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errEnded)
	defer cancel()
	if _, err := d.Take(ctx); !errors.Is(err, errEnded) {
		t.Errorf("no connection waits: got error %v, want the cause of the context", err)
	}
}

func TestServerAdmitsOneProcess(t *testing.T) {
	dir := t.TempDir()
	d := testServer(t, dir)
	early := call(t, dir)
	waits(t, d)
	d.Admit(os.Getpid() + 1)
	hungUp(t, early)
	hungUp(t, call(t, dir))
	d.Admit(os.Getpid())
	call(t, dir)
	take(t, d)
	d.Admit(0)
	call(t, dir)
	take(t, d)
}

func waits(t *testing.T, d *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}

// Take does not return a connection that has been closed, and a caller that dials without end
// occupies no more than the queue.
func TestServerQueue(t *testing.T) {
	dir := t.TempDir()
	d := testServer(t, dir)
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

// Root in the sandbox can call without end. The rate limit bounds the cost for the daemon, and
// never delays the guest's own calls.
func TestServerPacesStrangers(t *testing.T) {
	for _, test := range []struct {
		name  string
		admit int // 0: any process
		paced bool
	}{{"guest", os.Getpid(), false}, {"strangers", os.Getpid() + 1, true},
		{"nobody is known", 0, true}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			d, err := listen(dir, SSH, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			rests := 0 // of the accepting goroutine, for which close waits
			d.rest = func(time.Duration) { rests++ }
			if test.admit != 0 {
				d.Admit(test.admit)
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
			// The kernel returns the backlog in order: a call that arrives now is behind all of
			// them.
			d.Admit(os.Getpid())
			call(t, dir)
			take(t, d)
			d.Close()
			if !test.paced {
				if rests != 0 {
					t.Errorf("the guest's calls were kept waiting %d times", rests)
				}
				return
			}
			// Each call without a token is followed by a pause. The last ones may be accepted as
			// the guest's.
			allowed := strangersBurst + strangersRate*time.Since(began).Seconds() + backlog + 1
			if least := int(calls - allowed - 1); rests < least {
				t.Errorf("got %d rests, want at least %d", rests, least)
			}
		})
	}
}

// However fast others call, few of them wait at a time, and a caller behind them gets its turn.
func TestServerBacklog(t *testing.T) {
	dir := t.TempDir()
	d, err := listen(dir, SSH, slog.New(slog.DiscardHandler)) // no goroutine accepts yet
	if err != nil {
		t.Fatal(err)
	}
	d.Admit(os.Getpid())
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	waiting := 0
	for ; ; waiting++ {
		conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), SSH))
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if waiting > backlog+1 {
		t.Errorf("%d calls wait to be accepted, want at most %d", waiting, backlog+1)
	}
	d.wg.Go(d.accept)
	take(t, d)
	d.Close()
}

func TestServerClose(t *testing.T) {
	dir := t.TempDir()
	d, err := Listen(dir, SSH, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	conn := call(t, dir)
	taken := make(chan error, 1)
	waits(t, d)
	d.clear()
	go func() { _, err := d.Take(context.Background()); taken <- err }()
	d.Close()
	if err := <-taken; !errors.Is(err, ErrClosed) {
		t.Errorf("take: got error %v, want %v", err, ErrClosed)
	}
	hungUp(t, conn)
}

// The directory is ours; Listen does not follow a link in its place.
func TestServerNoLink(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "run")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if d, err := Listen(link, SSH, slog.New(slog.DiscardHandler)); err == nil {
		d.Close()
		t.Error("got no error from a symbolic link")
	}
}
