package sshconn

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

var errTest = errors.New("enough")

// within fails the test when f does not return.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("never: %s", what)
	}
}

// gate is a connection whose reads can be held up.
type gate struct {
	net.Conn
	shut atomic.Pointer[chan struct{}]
}

func (g *gate) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if c := g.shut.Load(); c != nil {
		<-*c
	}
	return n, err
}

// pair returns the two sides of a connection: a server and its client, which is served.
func pair(t *testing.T) (server, client *Conn) {
	t.Helper()
	server, client, _ = gated(t)
	return server, client
}

func gated(t *testing.T) (server, client *Conn, toServer *gate) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // not net.Pipe: both sides write before they read
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan *Conn, 1)
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		toServer = &gate{Conn: c}
		config := &ssh.ServerConfig{NoClientAuth: true}
		config.AddHostKey(signer)
		s, err := Server(toServer, config)
		if err != nil {
			t.Error(err)
			return
		}
		served <- s
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client, err = Client(
		c,
		&ssh.ClientConfig{HostKeyCallback: ssh.FixedHostKey(signer.PublicKey())},
	)
	server = <-served
	if err != nil || server == nil {
		t.Fatal(err)
	}
	serve(t, client, Handler{})
	t.Cleanup(func() { client.Close(); server.Close() })
	return server, client, toServer
}

// serve serves c until the test ends.
func serve(t *testing.T, c *Conn, h Handler) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Serve(h)
		c.Settle()
	}()
	t.Cleanup(func() { c.Close(); <-done })
}

// accept serves c, whose channels go to f.
func accept(t *testing.T, c *Conn, f func(*Channel)) {
	t.Helper()
	serve(t, c, Handler{Channel: func(nc *NewChannel) {
		if ch, err := nc.Accept(); err == nil {
			go f(ch) // ends with the channel
		}
	}})
}

func TestChannel(t *testing.T) {
	server, client := pair(t)
	accept(t, server, func(ch *Channel) {
		for q := range ch.Requests {
			_ = q.Reply(q.Type == "yes", nil)
		}
		<-ch.Closed
		_ = ch.Close()
	})
	ch, err := client.Open(t.Context(), "session", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"yes", "no"} {
		if ok, err := ch.SendRequest(name, true, nil); ok != (name == "yes") || err != nil {
			t.Errorf("%s: got %v, %v", name, ok, err)
		}
	}
	_ = ch.Close()
	within(t, "the end of the channel", ch.Drain)
	if _, err := ch.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// Requests that nobody receives hold up no other channel, and more than may wait, by number or by
// size, end the connection.
func TestChannelBounds(t *testing.T) {
	for name, tt := range map[string]struct {
		n    int
		q    ssh.Request
		over bool
	}{
		"many":                {100, ssh.Request{Type: "x"}, false},
		"too many":            {300, ssh.Request{Type: "x"}, true},
		"large":               {2, ssh.Request{Type: "x", Payload: make([]byte, 200_000)}, false},
		"too large":           {3, ssh.Request{Type: "x", Payload: make([]byte, 200_000)}, true},
		"too large a type":    {3, ssh.Request{Type: strings.Repeat("x", 200_000)}, true},
		"many window-changes": {5000, ssh.Request{Type: "window-change"}, false},
		"large window-changes": {20, ssh.Request{Type: "window-change",
			Payload: make([]byte, 200_000)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := pair(t)
			release := make(chan struct{})
			accept(t, server, func(ch *Channel) {
				<-release
				ch.Drain()
				_ = ch.Close()
			})
			ch, err := client.Open(t.Context(), "session", nil)
			if err != nil {
				t.Fatal(err)
			}
			for range tt.n {
				_, _ = ch.SendRequest(tt.q.Type, false, tt.q.Payload)
			}
			if tt.over {
				within(t, "the end of the connection", func() { _ = client.Wait() })
			} else if _, err := client.Open(t.Context(), "session", nil); err != nil {
				t.Errorf("another channel: %v", err)
			}
			if server.Flooded() != tt.over {
				t.Errorf("flooded: %v", server.Flooded())
			}
			close(release)
			_ = ch.Close()
			ch.Drain()
		})
	}
}

// The end of ctx ends the wait for a channel, which is closed when it opens after that.
func TestOpenEndsWithContext(t *testing.T) {
	server, client := pair(t)
	asked, closed := make(chan *NewChannel, 1), make(chan struct{})
	serve(t, server, Handler{Channel: func(nc *NewChannel) { asked <- nc }})
	ctx, cancel := context.WithCancelCause(t.Context())
	opened := make(chan error, 1)
	go func() {
		_, err := client.Open(ctx, "session", nil)
		opened <- err
	}()
	nc := <-asked
	cancel(errTest)
	if err := <-opened; !errors.Is(err, errTest) {
		t.Errorf("got %v, want the cause of ctx", err)
	}
	ch, err := nc.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the channel
		defer close(closed)
		ch.Drain()
	}()
	within(t, "CLOSE", func() { <-closed })
	_ = ch.Close()
}

// Whatever is opened while the connection ends is answered.
func TestOpenWhileConnectionEnds(t *testing.T) {
	for range 50 {
		server, client := pair(t)
		accept(t, server, func(ch *Channel) { ch.Drain() })
		opened := make(chan error, 8)
		for range cap(opened) {
			go func() {
				ch, err := client.Open(t.Context(), "session", nil)
				for ; err == nil; ch, err = client.Open(t.Context(), "session", nil) {
					_ = ch.Close()
					go ch.Drain() // ends with the connection
				}
				opened <- err
			}()
		}
		server.Close()
		within(t, "an answer", func() {
			for range cap(opened) {
				if err := <-opened; !errors.Is(err, ErrEnded) {
					t.Errorf("got %v, want ErrEnded", err)
				}
			}
		})
	}
}

// Open serves connections of other kinds, too.
func TestOpenOfLibrary(t *testing.T) {
	server, client := pair(t)
	accept(t, server, func(ch *Channel) { _ = ch.Close(); ch.Drain() })
	ch, err := Open(t.Context(), &ssh.Client{Conn: client.Conn}, "session", nil)
	if err != nil {
		t.Fatal(err)
	}
	ch.Drain()
}
