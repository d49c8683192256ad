package httpd

import (
	"context"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A client that does not read delays neither the session nor other clients. When it reads again, it
// gets the current screen.
func TestSocketThatIsNotRead(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
		})
	}}
	slow := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	t.Cleanup(slow.CloseIdleConnections)
	s := w.login(wire.RightDrive)
	deaf, _, err := w.socketBy(slow, s, "/page/terminal/demo/main?cols=400&rows=150")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.CloseNow()
	other, _, err := w.socket(s, "/page/terminal/demo/main?cols=80&rows=24")
	if err != nil {
		t.Fatal(err)
	}
	defer other.CloseNow()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// until reads up to a text, and returns the number of bytes and frames.
	until := func(c *websocket.Conn, text string) (bytes, frames int) {
		t.Helper()
		c.SetReadLimit(1 << 22)
		for end := ""; !strings.Contains(end, text); {
			kind, p, err := c.Read(ctx)
			if err != nil {
				t.Fatalf("%v while waiting for %q", err, text)
			}
			if kind == websocket.MessageBinary {
				bytes, frames, end = bytes+len(p), frames+1, end[max(0, len(end)-100):]+string(p)
			}
		}
		return bytes, frames
	}
	types := func(text string) {
		t.Helper()
		if err := deaf.Write(ctx, websocket.MessageBinary, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	types("echo its'-'size is $(stty size | tr ' ' -)\r")
	until(deaf, "149-400")
	// Different full screens: more than the kernel buffers, and fewer than disconnect a client that
	// does not read.
	types(
		`i=0; while [ $((i+=1)) -le 100 ]; do printf '\033[H'; head -c 60000 /dev/urandom | base64 -w 0 | head -c 59000; done; clear; echo _^_''^_^_` + "\r")
	began := time.Now()
	_, frames := until(other, "_^_^_^_")
	if most := 4 + int(30*time.Since(began).Seconds()+1); frames > most {
		t.Errorf("%d repaints in %v", frames, time.Since(began))
	}
	if got, _ := until(deaf, "_^_^_^_"); got > 1<<20 {
		t.Errorf("%d bytes came before the present screen", got)
	}
}
