package connect

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestSSH(t *testing.T) {
	other := newSigner(t)
	tests := []struct {
		name   string
		server func(*testServer)
		peer   func(*sandbox.Peer)
		want   error // nil: logged in
		text   string
	}{
		{name: "logs in"},
		{
			name: "one of several pinned keys",
			peer: func(p *sandbox.Peer) {
				p.HostKeys = append([]ssh.PublicKey{other.PublicKey()},
					p.HostKeys...)
			},
		},
		{
			name: "another host key",
			peer: func(p *sandbox.Peer) { p.HostKeys = []ssh.PublicKey{other.PublicKey()} },
			want: ErrIdentity,
			text: "SHA256:",
		},
		{
			name: "no pinned key",
			peer: func(p *sandbox.Peer) { p.HostKeys = nil },
			want: ErrIdentity,
		},
		{
			name: "another client key",
			peer: func(p *sandbox.Peer) { p.Auth = []ssh.AuthMethod{ssh.PublicKeys(other)} },
			want: ErrLogin,
		},
		{name: "no client key", peer: func(p *sandbox.Peer) { p.Auth = nil }, want: ErrLogin},
		{
			name: "hangs up",
			server: func(s *testServer) {
				s.raw = func(
					c net.Conn) {
					bufio.NewReader(c).ReadString('\n')
				}
			},
			want: io.EOF,
		},
		{name: "another protocol", server: func(s *testServer) {
			s.raw = func(c net.Conn) {
				io.WriteString(c,
					"HTTP/1.1 400 Bad\x1b[31mRequest\r\n\r\n")
			}
		}, text: "ssh handshake: "},
		{name: "version without end", server: func(s *testServer) {
			s.raw = func(c net.Conn) { io.WriteString(c, strings.Repeat("x", 1<<20)) }
		}, text: "ssh handshake: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, tt.server)
			peer := s.peer(t)
			if tt.peer != nil {
				tt.peer(&peer)
			}
			conn, err := SSH(t.Context(), peer)
			if err == nil {
				discard(conn)
				defer conn.Wait()
				defer conn.Close()
			}
			if tt.want == nil && tt.text == "" {
				if err != nil {
					t.Fatalf("got error %v, want a connection", err)
				}
				return
			}
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) ||
				!strings.Contains(err.Error(), tt.text) {
				t.Fatalf("got error %v, want %v with %q in it", err, tt.want, tt.text)
			}
			if strings.ContainsRune(err.Error(), '\x1b') {
				t.Errorf("error %q carries an escape sequence of the server", err)
			}
			// A network error is not a rejected login: it can be retried.
			if !errors.Is(tt.want, ErrLogin) && errors.Is(err, ErrLogin) {
				t.Errorf("error %v is a refused login", err)
			}
			if _, err := peer.Conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf(
					"after the error, write to the connection: got %v, want %v",
					err,
					net.ErrClosed,
				)
			}
		})
	}
}

// Opening a channel while the connection ends is an error and never blocks, also when the end of
// another channel triggers it.
func TestOpenWhileItEnds(t *testing.T) {
	s := newServer(t, nil)
	for range 500 {
		conn, err := SSH(t.Context(), s.peer(t))
		if err != nil {
			t.Fatal(err)
		}
		discard(conn)
		var openers sync.WaitGroup
		for range 8 {
			c, reqs, err := conn.OpenChannel(wire.ChannelSession, nil)
			if err != nil {
				t.Fatal(err)
			}
			openers.Go(func() { ssh.DiscardRequests(reqs) })
			openers.Go(func() {
				_, _ = io.Copy(io.Discard, c) // ends with the connection
				if _, _, err := conn.OpenChannel(wire.ChannelSession, nil); err == nil {
					t.Error("a channel was opened on a connection that has ended")
				}
			})
		}
		s.hangUp()
		done := make(chan struct{})
		go func() {
			openers.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Fatal("a call waits for a channel of a connection that has ended")
		}
		conn.Wait()
	}
}

// A silent server cannot block a login beyond its ctx.
func TestSSHEndsWithContext(t *testing.T) {
	cause := errors.New("enough")
	for _, tt := range []struct {
		name string
		raw  func(net.Conn)
	}{
		{"silent from the start", func(c net.Conn) { io.Copy(io.Discard, c) }},
		{"silent after its version", func(c net.Conn) {
			io.WriteString(c,
				"SSH-2.0-slow\r\n")
			io.Copy(io.Discard, c)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reached := make(chan struct{}, 1)
			s := newServer(t, func(s *testServer) {
				s.raw = func(c net.Conn) { reached <- struct{}{}; tt.raw(c) }
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			peer := s.peer(t)
			go func() { <-reached; cancel(cause) }()
			within(t, patience, "SSH", func() {
				if _, err := SSH(ctx, peer); !errors.Is(err, cause) {
					t.Errorf("got error %v, want %v", err, cause)
				}
			})
		})
	}
	t.Run("deadline", func(t *testing.T) {
		s := newServer(
			t,
			func(s *testServer) { s.raw = func(c net.Conn) { io.Copy(io.Discard, c) } },
		)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := SSH(ctx, s.peer(t)); !errors.Is(err, context.DeadlineExceeded) &&
			!errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got error %v, want a deadline", err)
		}
	})
}

func TestCipherOrder(t *testing.T) {
	s := newServer(t, nil)
	conn, err := SSH(t.Context(), s.peer(t))
	if err != nil {
		t.Fatal(err)
	}
	discard(conn)
	defer conn.Wait()
	defer conn.Close()
	algorithms, ok := conn.Conn.Conn.(ssh.AlgorithmsConnMetadata)
	if !ok {
		t.Fatal("connection does not tell its algorithms")
	}
	if got := algorithms.Algorithms().Write.Cipher; got != ssh.CipherAES128GCM {
		t.Errorf("got cipher %s, want %s", got, ssh.CipherAES128GCM)
	}
}

// A peer that stops answering is detected by the deadline of the connection, even if it still
// receives bytes.
func TestKeepAlive(t *testing.T) {
	t.Run("answered", func(t *testing.T) {
		asked := make(chan struct{}, 64)
		s := newServer(t, func(s *testServer) {
			s.global = func(r *ssh.Request) { r.Reply(false, nil); asked <- struct{}{} }
		})
		conn, err := SSH(t.Context(), s.peer(t))
		if err != nil {
			t.Fatal(err)
		}
		discard(conn)
		defer conn.Wait()
		defer conn.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- conn.keepAlive(ctx, 5*time.Millisecond, 10_000) }()
		for range 10 {
			<-asked
		}
		cancel(ErrClosed)
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want %v", err, ErrClosed)
		}
	})
	t.Run("not answered", func(t *testing.T) {
		s := newServer(t, func(s *testServer) { s.global = func(*ssh.Request) {} })
		conn, err := SSH(t.Context(), s.peer(t))
		if err != nil {
			t.Fatal(err)
		}
		discard(conn)
		within(t, patience, "keepAlive", func() {
			if err := conn.keepAlive(t.Context(), 10*time.Millisecond, 4); err == nil {
				t.Error("got no error from a dead peer")
			}
		})
		within(t, patience, "Wait", func() { conn.Wait() })
	})
	t.Run("ended before", func(t *testing.T) {
		conn, err := SSH(t.Context(), newServer(t, func(*testServer) {}).peer(t))
		if err != nil {
			t.Fatal(err)
		}
		discard(conn)
		conn.Close()
		want := conn.Wait()
		if got := conn.keepAlive(t.Context(), time.Hour, 4); !errors.Is(got, want) {
			t.Errorf("got %v, want what ended it: %v", got, want)
		}
	})
}

func TestPrintable(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"plain ünïcode", "plain ünïcode"},
		{"a\x1b[31m\x00\r\n\x9b\u009b", "a?[31m?????"},
		{strings.Repeat("x", 30), strings.Repeat("x", 20) + "..."},
	} {
		if got := printable(tt.in, 20); got != tt.want {
			t.Errorf("printable(%q): got %q, want %q", tt.in, got, tt.want)
		}
	}
}
