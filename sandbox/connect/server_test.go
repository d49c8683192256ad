package connect

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testServer is an SSH server over loopback that stands for a sandbox, and can be made to misbehave
// in one way at a time. Not over net.Pipe: both SSH peers write before they read.
type testServer struct {
	host, client ssh.Signer
	listener     net.Listener
	wg           sync.WaitGroup
	dials        atomic.Int32
	logins       atomic.Int32

	refuse  func() bool                                 // login
	order   func(wire.Control) (ok bool, answer []byte) // control@sandboxd; nil answers hello
	global  func(*ssh.Request)                          // every other global request; nil refuses
	channel func(ssh.NewChannel)                        // nil echoes a session stream
	begin   func(*ssh.ServerConn)                       // after login
	raw     func(net.Conn)                              // instead of SSH

	deaf sync.RWMutex // while held, the server takes nothing in

	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

type gatedConn struct {
	net.Conn
	gate *sync.RWMutex
}

func (c gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.RLock()
	defer c.gate.RUnlock()
	return n, err
}

func newSigner(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func newServer(t *testing.T, set func(*testServer)) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{host: newSigner(t), client: newSigner(t), listener: l}
	if set != nil {
		set(s)
	}
	s.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.dials.Add(1)
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.wg.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		s.hangUp()
		s.wg.Wait()
	})
	return s
}

// hangUp ends all connections as a killed server would.
func (s *testServer) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

func (s *testServer) serve(nc net.Conn) {
	defer nc.Close()
	if s.raw != nil {
		s.raw(nc)
		return
	}
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if string(key.Marshal()) != string(s.client.PublicKey().Marshal()) ||
				s.refuse != nil && s.refuse() {
				return nil, ErrLogin
			}
			return nil, nil
		},
	}
	config.AddHostKey(s.host)
	conn, chans, reqs, err := ssh.NewServerConn(gatedConn{nc, &s.deaf}, config)
	if err != nil {
		return
	}
	s.logins.Add(1)
	if s.begin != nil {
		s.wg.Go(func() { s.begin(conn) })
	}
	s.wg.Go(func() {
		for req := range reqs {
			switch {
			case req.Type == wire.ControlRequest:
				s.answer(req)
			case s.global != nil:
				s.global(req)
			default:
				req.Reply(false, nil)
			}
		}
	})
	for nch := range chans {
		if s.channel != nil {
			s.channel(nch)
			continue
		}
		s.wg.Go(func() { echo(nch) })
	}
}

func (s *testServer) answer(req *ssh.Request) {
	var order wire.Control
	if err := json.Unmarshal(req.Payload, &order); err != nil {
		req.Reply(false, nil)
		return
	}
	if s.order != nil {
		if ok, answer := s.order(order); ok || answer != nil {
			req.Reply(ok, answer)
			return
		}
	}
	req.Reply(true, helloReply)
}

var helloReply, _ = json.Marshal(wire.ControlReply{Version: wire.Version, Software: "test"})

// echo serves one session stream that returns its input, writes stderr, and ends with EOF.
func echo(nch ssh.NewChannel) {
	ch, reqs, err := nch.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	for req := range reqs {
		var sub wire.Subsystem
		ok := req.Type == wire.RequestSubsystem && wire.Unmarshal(req.Payload, &sub) == nil &&
			sub.Name == wire.SessionSubsystem
		req.Reply(ok, nil)
		if ok {
			break
		}
	}
	go ssh.DiscardRequests(reqs)
	io.Copy(ch, ch)
	ch.CloseWrite()
}

// peer dials the server as a backend would.
func (s *testServer) peer(t *testing.T) sandbox.Peer {
	t.Helper()
	p, err := s.dial(t.Context(), sandbox.Instance{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *testServer) dial(ctx context.Context, _ sandbox.Instance) (sandbox.Peer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.listener.Addr().String())
	if err != nil {
		return sandbox.Peer{}, err
	}
	return sandbox.Peer{Conn: conn, User: "sandbox", HostKeys: []ssh.PublicKey{s.host.PublicKey()},
		Auth: []ssh.AuthMethod{ssh.PublicKeys(s.client)}}, nil
}

// patience bounds a wait of a test.
const patience = time.Minute

// within fails the test when f has not returned after d.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s did not return within %v", what, d)
	}
}

func discard(c *Conn) { go c.Serve(sshconn.Handler{}) }
