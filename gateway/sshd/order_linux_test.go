package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// A command finds the listener that its client requested before it opened the command's channel,
// however slow the sandbox is. So does a forwarded connection.
func TestListensBeforeChannels(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	var listening atomic.Int32
	w.play(func(_ *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		var serving sync.WaitGroup
		defer serving.Wait()
		serving.Go(func() {
			for q := range reqs {
				if q.Type == wire.GlobalTCPForward {
					<-time.After(2 * time.Millisecond) // a slow sandbox
					listening.Add(1)
				}
				_ = q.Reply(true, nil)
			}
		})
		for nc := range chans {
			found := fmt.Sprint(listening.Load())
			ch, requests, err := nc.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				if nc.ChannelType() == wire.ChannelSession {
					started(requests)
				}
				io.WriteString(ch, found)
				ch.SendRequest("exit-status", false, exitStatus(0))
				ch.Close()
				ssh.DiscardRequests(requests)
			})
		}
	})
	c := w.dial("alice", "demo")
	var running sync.WaitGroup
	defer running.Wait()
	for i := range 50 {
		forward := wire.TCPForward{Host: "127.0.0.1", Port: uint32(10_000 + i)}
		if _, _, err := c.SendRequest(wire.GlobalTCPForward, false,
			wire.Marshal(forward)); err != nil {
			t.Fatal(err)
		}
		var ch ssh.Channel
		var reqs <-chan *ssh.Request
		if i%2 == 0 {
			ch, reqs = openSession(t, c)
		} else {
			var err error
			if ch, reqs, err = c.OpenChannel(wire.ChannelDirectTCP,
				wire.Marshal(wire.DirectTCP{Host: "127.0.0.1", Port: 1})); err != nil {
				t.Fatal(err)
			}
		}
		running.Go(func() {
			go ssh.DiscardRequests(reqs)
			if i%2 == 0 {
				if ok, err := ch.SendRequest(
					"exec", true, wire.Marshal(wire.Exec{Command: "x"})); !ok || err != nil {
					t.Errorf("exec: %v, %v", ok, err)
				}
			}
			var found int
			if _, err := fmt.Fscan(ch, &found); err != nil || found < i+1 {
				t.Errorf("channel %d found %d listeners, %v", i, found, err)
			}
		})
	}
}

// corked is a client's connection that can withhold writes to the client, packet by packet.
type corked struct {
	net.Conn
	packets chan struct{} // one for each withheld packet

	mu   sync.Mutex
	in   bool   // guarded by mu
	held []byte // guarded by mu
}

func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.in {
		return c.Conn.Write(p)
	}
	c.held = append(c.held, p...)
	c.packets <- struct{}{}
	return len(p), nil
}

func (c *corked) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = true
}

func (c *corked) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = false
	_, err := c.Conn.Write(c.held)
	return err
}

// OpenSSH opens its only session and sends no-more-sessions right after.
func TestNoMoreSessionsBehindOne(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	for range 25 {
		raw, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		cork := &corked{Conn: raw, packets: make(chan struct{}, 16)}
		sc, chans, reqs, err := ssh.NewClientConn(cork, w.addr, &ssh.ClientConfig{User: "demo",
			Auth:            []ssh.AuthMethod{ssh.PublicKeys(w.signer("alice"))},
			HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey())})
		if err != nil {
			t.Fatal(err)
		}
		c := ssh.NewClient(sc, chans, reqs)
		cork.cork()
		opened := make(chan error, 1)
		go func() {
			ch, reqs, err := c.OpenChannel("session", nil)
			if err == nil {
				go ssh.DiscardRequests(reqs)
				ch.Close()
			}
			opened <- err
		}()
		<-cork.packets
		if _, _, err := c.SendRequest(wire.GlobalNoMoreSessions, false, nil); err != nil {
			t.Fatal(err)
		}
		if err := cork.uncork(); err != nil {
			t.Fatal(err)
		}
		if err := <-opened; err != nil {
			t.Errorf("the session before: %v", err)
		}
		// The answer to the next request means that no-more-sessions was received, too.
		if _, _, err := c.SendRequest(wire.GlobalKeepalive, true, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.NewSession(); err == nil ||
			!strings.Contains(err.Error(), "no-more-sessions") {
			t.Errorf("one more: %v", err)
		}
		c.Close()
	}
}

// A sandbox may receive connections as soon as it has answered that it listens. The client gets the
// answer first, because it rejects connections to unknown ports.
func TestAnswerBeforeConnection(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	connected := make(chan error, 1)
	w.play(func(conn *ssh.ServerConn, chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
		var serving sync.WaitGroup
		defer serving.Wait()
		serving.Go(func() {
			sessions(func(_ ssh.Channel, reqs <-chan *ssh.Request) { ssh.DiscardRequests(reqs) })(
				conn, chans, nil)
		})
		port := uint32(10_000)
		for q := range reqs {
			var f wire.TCPForward
			if q.Type != wire.GlobalTCPForward || wire.Unmarshal(q.Payload, &f) != nil {
				_ = q.Reply(false, nil)
				continue
			}
			port++
			_ = q.Reply(true, wire.Marshal(wire.TCPForwardReply{Port: port}))
			ch, requests, err := conn.OpenChannel(wire.ChannelForwardedTCP,
				wire.Marshal(wire.DirectTCP{Host: f.Host, Port: port, OriginHost: "127.0.0.1",
					OriginPort: 1}))
			if err == nil {
				ch.Close()
				serving.Go(func() { ssh.DiscardRequests(requests) })
			}
			connected <- err
		}
	})
	t.Run("library", func(t *testing.T) {
		c := w.dial("alice", "demo")
		var taking sync.WaitGroup
		defer taking.Wait()
		defer c.Close()
		incoming := c.HandleChannelOpen(wire.ChannelForwardedTCP)
		taking.Go(func() {
			for nc := range incoming {
				if ch, requests, err := nc.Accept(); err == nil {
					ch.Close()
					taking.Go(func() { ssh.DiscardRequests(requests) })
				}
			}
		})
		for range 300 {
			if ok, _, err := c.SendRequest(wire.GlobalTCPForward, true,
				wire.Marshal(wire.TCPForward{Host: "localhost"})); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if err := <-connected; err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("OpenSSH", func(t *testing.T) {
		to := echoServer(t, "tcp", "127.0.0.1:0").Addr().String()
		for range 5 {
			c := w.ssh("alice", "-N", "-R", "0:"+to, "demo@127.0.0.1")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			var err error
			select {
			case err = <-connected:
			case <-time.After(time.Minute):
				err = errors.New("it asks for nothing")
			}
			c.Process.Kill()
			c.Wait()
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A channel waits for earlier requests, but not indefinitely.
func TestAwait(t *testing.T) {
	never := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := await(t.Context(), never); !errors.As(err, new(*wire.Error)) ||
			time.Since(began) != dialTimeout {
			t.Errorf("never answered: %v after %v", err, time.Since(began))
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errClientGone)
	if err := await(ctx, never); !errors.Is(err, errClientGone) {
		t.Errorf("the client has gone: %v", err)
	}
}

// failing is a listener without descriptors for some time.
type failing struct {
	net.Listener
	times int // of the goroutine that accepts
}

func (l *failing) Accept() (net.Conn, error) {
	if l.times--; l.times >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// The server survives a lack of descriptors, and returns an error when its listener is closed.
func TestAcceptAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{HostKeys: []ssh.Signer{newSigner(t)},
		Keys: OpenKeys(writeKeys(t), "owner", nil)})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), &failing{l, 3}) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil { // the version
		t.Error(err)
	}
	l.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}
