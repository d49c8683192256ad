package httpd

import (
	"context"
	"net"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A socket that nobody reads, in the middle of output, delays neither the end of its token nor that
// of the daemon.
func TestEndOfSocketsThatAreNotRead(t *testing.T) {
	w := newWorld(t)
	w.sandbox("demo")
	agent := w.agent("demo")
	// A different full screen each time.
	w.goesOn(
		agent,
		`while :; do printf '\033[H'; head -c 60000 /dev/urandom | base64 -w 0 | head -c 59000; done`)
	deafen := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
		})
	}}
	client := &http.Client{Transport: &http.Transport{DialContext: deafen.DialContext}}
	t.Cleanup(client.CloseIdleConnections)
	for name, end := range map[string]func(id string){
		"revoked": func(id string) {
			if err := w.tokens.Revoke(t.Context(), "alice", id); err != nil {
				t.Error(err)
			}
		},
		"daemon": func(string) { w.end(); w.serve() },
	} {
		t.Run(name, func(t *testing.T) {
			s, id := w.loginID()
			for range 3 {
				c, _, err := w.socketBy(client, s, "/page/terminal/demo/main?cols=400&rows=150")
				if err != nil {
					t.Fatal(err)
				}
				defer c.CloseNow()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				c.SetReadLimit(-1)
				for range 5 { // it has begun; nothing is read from then on
					if _, _, err := c.Read(ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
			began := time.Now()
			end(id)
			for {
				parties := w.parties("demo")
				people := slices.ContainsFunc(
					parties, func(p wire.Party) bool { return p.Kind == wire.Person })
				if !people {
					break
				}
				if time.Since(began) > patience {
					t.Fatalf("after %v these are left: %v", time.Since(began), parties)
				}
			}
			w.await("no request is under way",
				func(at map[string]int) bool { return at["alice"] == 0 })
			t.Logf("it took %v", time.Since(began))
		})
	}
}
