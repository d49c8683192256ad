package connect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// mustOpen returns a Control that waits a minute for the guest to answer a CLOSE.
func mustOpen(t *testing.T, s *testServer) *Control {
	t.Helper()
	return mustOpenClosing(t, s, time.Minute)
}

func mustOpenClosing(t *testing.T, s *testServer, closing time.Duration) *Control {
	t.Helper()
	c, err := openControl(t.Context(), s.peer(t), time.Minute, closing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOpenControl(t *testing.T) {
	reply := func(ok bool, r any) func(*testServer) {
		return func(s *testServer) {
			s.order = func(wire.Control) (bool, []byte) {
				b, _ := json.Marshal(r)
				return ok, b
			}
		}
	}
	tests := []struct {
		name   string
		server func(*testServer)
		want   error
		text   string
	}{
		{name: "hello"},
		{name: "another sshd", server: reply(false, nil), want: ErrNoGuest},
		{
			name:   "newer guest",
			server: reply(true, wire.ControlReply{Version: wire.Version + 1}),
			want:   ErrVersion,
		},
		{name: "no version", server: reply(true, wire.ControlReply{}), want: ErrVersion},
		{name: "not JSON", server: reply(true, "\x1b[2J"), text: "reply of the guest"},
		{
			name:   "an error",
			server: reply(true, wire.ControlReply{Error: &wire.Error{Message: "no\x1b[31m"}}),
			text:   "no?[31m",
		},
		{
			name:   "login refused",
			server: func(s *testServer) { s.refuse = func() bool { return true } },
			want:   ErrLogin,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, tt.server)
			c, err := OpenControl(t.Context(), s.peer(t))
			if err == nil {
				defer c.Close()
			}
			switch {
			case tt.want == nil && tt.text == "":
				if err != nil {
					t.Fatalf("got error %v, want a connection", err)
				}
				if got := c.Hello().Software; got != "test" {
					t.Errorf("got software %q, want %q", got, "test")
				}
			case err == nil || tt.want != nil && !errors.Is(err, tt.want) ||
				!strings.Contains(err.Error(), tt.text):
				t.Errorf("got error %v, want %v with %q in it", err, tt.want, tt.text)
			}
		})
	}
}

// A guest that never answers a command cannot block a caller beyond its ctx, and cannot block
// Close.
func TestDoEndsWithContext(t *testing.T) {
	release := make(chan struct{})
	s := newServer(t, func(s *testServer) {
		s.order = func(o wire.Control) (bool, []byte) {
			if o.Do != "hello" {
				<-release
			}
			return true, helloReply
		}
	})
	defer close(release)
	c := mustOpen(t, s)
	for range 3 { // the second waits for the first one's answer, not for its own
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := c.Do(ctx, wire.Control{Do: "health"}); !errors.Is(
			err,
			context.DeadlineExceeded,
		) {
			t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
		}
		cancel()
	}
	within(t, patience, "Close", func() { c.Close() })
	if _, err := c.Do(t.Context(), wire.Control{Do: "health"}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: got error %v, want %v", err, ErrClosed)
	}
	if _, err := c.OpenStream(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: got error %v, want %v", err, ErrClosed)
	}
}

func TestStream(t *testing.T) {
	c := mustOpen(t, newServer(t, nil))
	s, err := c.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	go func() {
		s.Write(sent)
		s.(*Stream).CloseWrite()
	}()
	got, err := io.ReadAll(s)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("got %d bytes and error %v, want the %d bytes sent", len(got), err, len(sent))
	}
}

// Close unblocks a Read. A guest that never answers with its own CLOSE loses the connection.
func TestStreamClose(t *testing.T) {
	t.Run("answered", func(t *testing.T) {
		c := mustOpen(t, newServer(t, nil))
		s, err := c.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		within(t, patience, "Read", func() { io.ReadAll(s) })
		<-s.(*Stream).ended
		if err := c.Err(); err != nil {
			t.Errorf("connection: got %v, want it alive", err)
		}
	})
	t.Run("never answered", func(t *testing.T) {
		srv := newServer(t, nil)
		c := mustOpenClosing(t, srv, 50*time.Millisecond)
		s, err := c.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		srv.deaf.Lock() // x/crypto answers a CLOSE as soon as it sees it
		defer srv.deaf.Unlock()
		s.Close()
		within(t, patience, "Read", func() { io.ReadAll(s) })
		<-c.Done()
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), "did not close") {
			t.Errorf("connection: got %v, want it ended because the stream is not closed", err)
		}
	})
}

func TestOpenStreamRefused(t *testing.T) {
	c := mustOpen(t, newServer(t, func(s *testServer) {
		s.channel = func(nch ssh.NewChannel) {
			nch.Reject(ssh.ResourceShortage,
				"too many\x1b[31m")
		}
	}))
	_, err := c.OpenStream(t.Context())
	if err == nil || !strings.Contains(err.Error(), "too many") ||
		strings.Contains(err.Error(), "\x1b") {
		t.Errorf("got error %q, want the reason, printable", err)
	}
	if err := c.Err(); err != nil {
		t.Errorf("connection: got %v, want it alive", err)
	}
}

// A guest that answers no channel open blocks a bounded number of goroutines, and no caller beyond
// its ctx.
func TestOpenStreamUnanswered(t *testing.T) {
	c := mustOpen(t, newServer(t, func(s *testServer) { s.channel = func(ssh.NewChannel) {} }))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for range 2 * maxOpening {
		if _, err := c.OpenStream(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
		}
	}
	if got := len(c.opening); got > maxOpening {
		t.Errorf("got %d openings under way, want at most %d", got, maxOpening)
	}
	within(t, patience, "Close", func() { c.Close() })
}

// Unexpected requests of a guest are rejected, and never freeze the connection.
func TestHostilePeer(t *testing.T) {
	refused := make(chan string, 8)
	s := newServer(t, func(s *testServer) {
		s.begin = func(conn *ssh.ServerConn) {
			for range 100 { // 17 unserviced ones freeze a connection
				conn.SendRequest("hostkeys-00@openssh.com", false, []byte("junk"))
			}
			for range 100 {
				if ok, _, err := conn.SendRequest("tcpip-forward", true, nil); ok || err != nil {
					refused <- "tcpip-forward was not refused"
					return
				}
			}
			for _, kind := range []string{"session", "auth-agent@openssh.com", "x11",
				"forwarded-tcpip", "egress@sandboxd"} {
				_, _, err := conn.OpenChannel(kind, nil)
				var rejected *ssh.OpenChannelError
				if !errors.As(err, &rejected) {
					refused <- kind + " was not refused"
					return
				}
			}
			refused <- ""
		}
	})
	c := mustOpen(t, s)
	if got := <-refused; got != "" {
		t.Error(got)
	}
	if _, err := c.Do(t.Context(), wire.Control{Do: "health"}); err != nil {
		t.Errorf("afterwards: got error %v, want an answer", err)
	}
}

func TestControlEnds(t *testing.T) {
	s := newServer(t, nil)
	c := mustOpen(t, s)
	stream, err := c.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.hangUp()
	within(t, patience, "Done", func() { <-c.Done() })
	if c.Err() == nil {
		t.Error("got no error from a connection that the guest ended")
	}
	within(t, patience, "Read", func() {
		if _, err := stream.Read(make([]byte, 1)); err == nil {
			t.Error("read from a dead connection: got no error")
		}
	})
	stream.Close()
}

func TestControlNoticesDeadPeer(t *testing.T) {
	s := newServer(t, func(s *testServer) { s.global = func(*ssh.Request) {} })
	c, err := openControl(t.Context(), s.peer(t), 10*time.Millisecond, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	within(t, patience, "Done", func() { <-c.Done() })
	if c.Err() == nil {
		t.Error("got no error from a dead peer")
	}
}

func FuzzParseControlReply(f *testing.F) {
	f.Add(helloReply)
	f.Add(
		[]byte(
			`{"version":1,"health":"broken: \u001b[31m","error":{"code":"x","message":"\u0000"}}`,
		),
	)
	f.Fuzz(func(t *testing.T, payload []byte) {
		reply, err := parseControlReply("health", payload)
		texts := []string{reply.Software, reply.Health}
		if err != nil {
			texts = append(texts, err.Error())
		}
		for _, s := range texts {
			if strings.ContainsFunc(
				s,
				func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 },
			) {
				t.Errorf("%q is not printable", s)
			}
		}
	})
}
