package connect

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// cost is what this process had before a hostile guest got hold of it. The guest's side runs in it
// too, so that the bounds are generous; what they rule out is growth with what the guest sends.
type cost struct {
	goroutines int
	heap       uint64
}

func measure() cost {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return cost{runtime.NumGoroutine(), m.HeapAlloc}
}

// bounded fails the test when there is much more now than before.
func (before cost) bounded(t *testing.T) {
	t.Helper()
	now := measure()
	// Those of the server, which are in this process too, end when they hear of it.
	for tick, end := time.NewTicker(10*time.Millisecond),
		time.Now().Add(patience); now.goroutines > before.goroutines+40 && time.Now().Before(end); {
		<-tick.C
		now = measure()
	}
	if now.goroutines > before.goroutines+40 {
		t.Errorf("got %d goroutines, %d before", now.goroutines, before.goroutines)
	}
	if now.heap > before.heap+32<<20 {
		t.Errorf("got %d bytes of heap, %d before", now.heap, before.heap)
	}
}

// If the server is not SSH, the attempt ends with its ctx at the latest, and leaves nothing.
func TestHostileBanner(t *testing.T) {
	endlessly := func(p []byte) func(net.Conn) {
		return func(c net.Conn) {
			for {
				if _, err := c.Write(p); err != nil {
					return
				}
			}
		}
	}
	after := func(first, then []byte) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := c.Write(first); err == nil {
				endlessly(then)(c)
			}
		}
	}
	version := []byte("SSH-2.0-x\r\n")
	kilobytes := bytes.Repeat([]byte("x"), 32<<10)
	for name, raw := range map[string]func(net.Conn){
		"one endless line":  endlessly(kilobytes),
		"lines without end": endlessly(bytes.Repeat([]byte("hello\r\n"), 1000)),
		"NUL":               endlessly(make([]byte, 32<<10)),
		"silence":           func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"silence after version": func(c net.Conn) {
			_, _ = c.Write(version)
			_,
				_ = io.Copy(io.Discard, c)
		},
		"packet of 4 GB":    after(version, []byte("\xff\xff\xff\xff")),
		"packet of 2 GB":    after(append(version, 0x7f, 0xff, 0xff, 0xff, 4), kilobytes),
		"packet of nothing": after(version, make([]byte, 4096)),
		"key exchange of noise": after(version,
			append([]byte{0, 0, 0x7f, 0xfc, 4, 20}, kilobytes[:0x7ffb]...)),
		"ignore without end": after(version,
			append([]byte{0, 0, 0, 12, 10, 2}, make([]byte, 10)...)),
		"another protocol":       after([]byte("HTTP/1.1 200 OK\r\n\r\n"), kilobytes),
		"an old version of SSH":  after([]byte("SSH-1.5-x\r\n"), kilobytes),
		"version with no ending": after([]byte("SSH-2.0-"), kilobytes),
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(s *testServer) { s.raw = raw })
			before := measure()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			within(t, patience, "OpenControl", func() {
				c, err := OpenControl(ctx, s.peer(t))
				if err == nil {
					c.Close()
					t.Error("it was taken for a guest")
				} else if text := err.Error(); len(text) > 1000 ||
					strings.ContainsAny(text, "\x00\x1b\n") {
					t.Errorf("error %q", text)
				}
			})
			s.hangUp()
			before.bounded(t)
		})
	}
}

// A guest that floods or does not answer costs the daemon no more memory than another one.
func TestHostileGuest(t *testing.T) {
	huge := strings.Repeat("\x1b[2Jx", 32<<10/5)
	for _, tt := range []struct {
		name  string
		set   func(s *testServer, over <-chan struct{})
		begin func(*ssh.ServerConn)
		// health says whether an order has to be answered all the same.
		health bool
	}{
		{name: "thousands of channels", health: true, begin: func(conn *ssh.ServerConn) {
			for range 3000 {
				if _, _, err := conn.OpenChannel("session", nil); err == nil {
					t.Error("a channel was opened")
				}
			}
		}},
		{name: "channels of huge names", health: true, begin: func(conn *ssh.ServerConn) {
			for range 200 {
				_, _, _ = conn.OpenChannel(huge, []byte(huge))
			}
		}},
		{name: "requests of huge names", health: true, begin: func(conn *ssh.ServerConn) {
			for range 500 {
				_, _, _ = conn.SendRequest(huge, false, []byte(huge))
			}
		}},
		{name: "an answer of 175 KB", health: true, set: func(s *testServer, _ <-chan struct{}) {
			s.order = func(o wire.Control) (bool, []byte) {
				if o.Do == "hello" {
					return false, nil // as any other
				}
				b, _ := json.Marshal(wire.ControlReply{Version: wire.Version,
					Health: strings.Repeat("\x1bx", 25<<10)})
				return true, b
			}
		}},
		{name: "answers that are no JSON", set: func(s *testServer, over <-chan struct{}) {
			s.order = func(o wire.Control) (bool, []byte) {
				if o.Do == "hello" {
					return false, nil
				}
				return true, []byte(huge)
			}
		}},
		{name: "no answer", set: func(s *testServer, over <-chan struct{}) {
			s.order = func(o wire.Control) (bool, []byte) {
				if o.Do != "hello" {
					<-over
				}
				return false, nil
			}
		}},
		{name: "streams that say nothing", set: func(s *testServer, over <-chan struct{}) {
			s.channel = func(nch ssh.NewChannel) {
				if ch, reqs, err := nch.Accept(); err == nil {
					s.wg.Go(func() { ssh.DiscardRequests(reqs) })
					_ = ch
				}
			}
		}, health: true},
		{name: "streams of noise without end", set: func(s *testServer, over <-chan struct{}) {
			s.channel = func(nch ssh.NewChannel) {
				s.wg.Go(func() {
					ch, reqs, err := nch.Accept()
					if err != nil {
						return
					}
					s.wg.Go(func() {
						for r := range reqs {
							_ = r.Reply(true, nil)
						}
					})
					s.wg.Go(func() {
						for err := error(nil); err == nil; {
							_, err = ch.Stderr().Write([]byte(huge))
						}
					})
					for err = nil; err == nil; {
						_, err = ch.Write([]byte(huge))
					}
				})
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flooded, over := make(chan struct{}), make(chan struct{})
			s := newServer(t, func(s *testServer) {
				if tt.set != nil {
					tt.set(s, over)
				}
				s.begin = func(conn *ssh.ServerConn) {
					defer close(flooded)
					if tt.begin != nil {
						tt.begin(conn)
					}
				}
			})
			t.Cleanup(func() { close(over) }) // before the server's, which waits
			before := measure()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, err := OpenControl(ctx, s.peer(t))
			if err != nil {
				t.Fatal(err)
			}
			<-flooded
			short, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			if tt.health {
				short = ctx
			}
			reply, err := c.Do(short, wire.Control{Do: "health"})
			if tt.health && err != nil {
				t.Errorf("health: %v", err)
			}
			if len(reply.Health) > 1000 || strings.Contains(reply.Health, "\x1b") {
				t.Errorf("health of %d bytes, %.20q", len(reply.Health), reply.Health)
			}
			brief, cut := context.WithTimeout(t.Context(), time.Second)
			defer cut()
			for range 20 {
				stream, err := c.OpenStream(brief)
				if err != nil {
					continue
				}
				if _, err := wire.Open(brief, stream, wire.Attach{Session: "main"},
					wire.Handler{}); err == nil {
					t.Error("it was taken for a session")
				}
			}
			before.bounded(t)
			within(t, patience, "Close", func() { c.Close() })
			before.bounded(t)
		})
	}
}
