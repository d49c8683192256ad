//go:build linux

package guest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/sshconn"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// halfCloser serves one connection that answers only after it has read everything.
func halfCloser(t testing.TB, l net.Listener) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all, err := io.ReadAll(conn)
			fmt.Fprintf(conn, "read %d bytes, %v", len(all), err)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
}

func listenLocal(t testing.TB, network, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// talk sends, ends its side, and returns the answer.
func talk(t testing.TB, conn net.Conn, text string) string {
	t.Helper()
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// dialVia opens a direct channel whose directions can end separately.
func dialVia(t testing.TB, client *ssh.Client, channel string, payload any) (ssh.Channel, error) {
	t.Helper()
	ch, reqs, err := client.OpenChannel(channel, wire.Marshal(payload))
	if err == nil {
		go ssh.DiscardRequests(reqs)
	}
	return ch, err
}

func TestDirect(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	tcp := listenLocal(t, "tcp", "127.0.0.1:0")
	halfCloser(t, tcp)
	path := filepath.Join(s.home, "service")
	halfCloser(t, listenLocal(t, "unix", path))
	port := uint32(tcp.Addr().(*net.TCPAddr).Port)
	for _, tt := range []struct {
		name, channel string
		payload       any
	}{
		{"tcp", wire.ChannelDirectTCP, wire.DirectTCP{Host: "127.0.0.1", Port: port}},
		{"tcp by name", wire.ChannelDirectTCP, wire.DirectTCP{Host: "localhost", Port: port}},
		{"unix", wire.ChannelDirectUnix, wire.DirectUnix{Path: path}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ch, err := dialVia(t, client, tt.channel, tt.payload)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(ch, strings.Repeat("x", 300000)); err != nil {
				t.Fatal(err)
			}
			if err := ch.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			// The peer saw our end, and its answer still arrives.
			if got, err := io.ReadAll(ch); string(got) != "read 300000 bytes, <nil>" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	closed := listenLocal(t, "tcp", "127.0.0.1:0")
	closed.Close()
	for _, tt := range []struct {
		name, channel string
		payload       any
		want          string
	}{
		{"nobody listens", wire.ChannelDirectTCP, wire.DirectTCP{Host: "127.0.0.1", Port: uint32(closed.Addr().(*net.TCPAddr).Port)}, "connection refused"},
		{"port too high", wire.ChannelDirectTCP, wire.DirectTCP{Host: "127.0.0.1", Port: 1 << 20}, "malformed request"},
		{"no such socket", wire.ChannelDirectUnix, wire.DirectUnix{Path: "/no/such/socket"}, "no such file or directory"},
		{"relative socket", wire.ChannelDirectUnix, wire.DirectUnix{Path: "service"}, "malformed request"},
		{"long socket", wire.ChannelDirectUnix, wire.DirectUnix{Path: "/" + strings.Repeat("x", 200)}, "malformed request"},
		{"malformed", wire.ChannelDirectTCP, wire.Exec{Command: "x"}, "malformed request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := dialVia(t, client, tt.channel, tt.payload)
			if e, ok := errors.AsType[*ssh.OpenChannelError](err); !ok ||
				e.Reason != ssh.ConnectionFailed || e.Message != tt.want {
				t.Errorf("got %v, want a refusal: %s", err, tt.want)
			}
		})
	}
}

// A client that closes its channel early frees the connection behind it, even if the peer is
// silent.
func TestDirectClosedByClient(t *testing.T) {
	s := newSandbox(t)
	l := listenLocal(t, "tcp", "127.0.0.1:0")
	defer l.Close()
	ch, err := dialVia(t, s.dial(t), wire.ChannelDirectTCP,
		wire.DirectTCP{Host: "127.0.0.1", Port: uint32(l.Addr().(*net.TCPAddr).Port)})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(ch, "last words"); err != nil {
		t.Fatal(err)
	}
	ch.Close()
	if got, err := io.ReadAll(conn); string(got) != "last words" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	// A write now fails.
	await(t, "the connection is closed both ways",
		func() bool { _, err := conn.Write([]byte("x")); return err != nil })
}

func TestTCPForward(t *testing.T) {
	s := newSandbox(t)
	for _, tt := range []struct{ name, addr string }{{"loopback", "127.0.0.1:0"},
		{"name", "localhost:0"}, {"every address", "0.0.0.0:0"}} {
		t.Run(tt.name, func(t *testing.T) {
			client := s.dial(t)
			l, err := client.Listen("tcp", tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			halfCloser(t, l)
			_, port, err := net.SplitHostPort(l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				t.Fatal(err)
			}
			if got := talk(t, conn, "hello"); got != "read 5 bytes, <nil>" {
				t.Errorf("got %q", got)
			}
			if err := l.Close(); err != nil { // cancel-tcpip-forward
				t.Errorf("cancel: %v", err)
			}
			if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
				conn.Close()
				t.Error("still listens after a cancel")
			}
		})
	}
}

// Forwards belong to their connection: another connection can neither cancel nor receive them, and
// they end with theirs.
func TestForwardsAreApart(t *testing.T) {
	s := newSandbox(t)
	alice, bob := s.dial(t), s.dial(t)
	la, err := alice.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	halfCloser(t, la)
	addr := la.Addr().(*net.TCPAddr)
	req := wire.TCPForward{Host: "127.0.0.1", Port: uint32(addr.Port)}
	for _, request := range []string{wire.GlobalCancelTCPForward, wire.GlobalTCPForward} {
		if ok, _, err := bob.SendRequest(request, true, wire.Marshal(req)); ok || err != nil {
			t.Errorf("bob's %s of alice's port: got %v, %v", request, ok, err)
		}
	}
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	if got := talk(t, conn, "hello"); got != "read 5 bytes, <nil>" {
		t.Errorf("got %q", got)
	}
	alice.Close()
	await(t, "the port is free again", func() bool {
		ok, _, err := bob.SendRequest(wire.GlobalTCPForward, true, wire.Marshal(req))
		return ok && err == nil
	})
}

func TestForwardLimit(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	granted := 0
	for range maxForwards + 5 {
		if ok, _, err := client.SendRequest(wire.GlobalTCPForward, true,
			wire.Marshal(wire.TCPForward{Host: "127.0.0.1"})); err != nil {
			t.Fatal(err)
		} else if ok {
			granted++
		}
	}
	if granted != maxForwards {
		t.Errorf("granted %d listeners, want %d", granted, maxForwards)
	}
}

func TestUnixForward(t *testing.T) {
	s := newSandbox(t)
	client := s.dial(t)
	path := filepath.Join(s.home, "forwarded")
	// A socket that a killed server left behind is replaced.
	dead := listenLocal(t, "unix", path).(*net.UnixListener)
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := client.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	halfCloser(t, l)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode: got %v, %v; want 0600", st.Mode(), err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if got := talk(t, conn, "hello"); got != "read 5 bytes, <nil>" {
		t.Errorf("got %q", got)
	}
	if _, err := s.dial(t).ListenUnix(path); err == nil {
		t.Error("a socket in use was taken over")
	}
	file := writeFile(t, s.home, "file", "precious")
	if _, err := client.ListenUnix(file); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if got, err := os.ReadFile(file); string(got) != "precious" || err != nil {
		t.Errorf("the file holds %q, %v", got, err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the cancel: %v, want the socket gone", err)
	}
}

// Two clients with different agents at the same time never reach the other's agent.
func TestAgentForwarding(t *testing.T) {
	s := newSandbox(t)
	type user struct {
		name string
		sess *ssh.Session
		out  *bufio.Reader
		in   io.Writer
	}
	var users []user
	for _, name := range []string{"alice", "bob"} {
		client := s.dial(t)
		ring := agent.NewKeyring()
		k := newKeys(t)
		private, err := ssh.ParseRawPrivateKey([]byte(k.clientPEM))
		if err != nil {
			t.Fatal(err)
		}
		if err := ring.Add(agent.AddedKey{PrivateKey: private,
			Comment: name + "'s key"}); err != nil {
			t.Fatal(err)
		}
		if err := agent.ForwardToAgent(client, ring); err != nil {
			t.Fatal(err)
		}
		sess, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer sess.Close()
		if err := agent.RequestAgentForwarding(sess); err != nil {
			t.Fatal(err)
		}
		out, err := sess.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := sess.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := sess.Start(
			`stat -c '%a %F' $SSH_AUTH_SOCK $(dirname $SSH_AUTH_SOCK); echo $SSH_AUTH_SOCK; while read x; do ssh-add -l; done`); err != nil {
			t.Fatal(err)
		}
		users = append(users, user{name, sess, bufio.NewReader(out), in})
	}
	var sockets []string
	for _, u := range users {
		for i, want := range []string{"600 socket", "700 directory", ""} {
			line, err := u.out.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line = strings.TrimSpace(line); i == 2 {
				sockets = append(sockets, line)
			} else if line != want {
				t.Errorf("%s: got %q, want %q", u.name, line, want)
			}
		}
	}
	for range 10 {
		for _, u := range users {
			if _, err := io.WriteString(u.in, "\n"); err != nil {
				t.Fatal(err)
			}
			if line, err := u.out.ReadString('\n'); err != nil ||
				!strings.Contains(line, u.name+"'s key") {
				t.Fatalf("%s sees %q, %v", u.name, line, err)
			}
		}
	}
	for _, u := range users {
		u.sess.Close()
	}
	for _, path := range sockets {
		await(t, "the socket is removed", func() bool {
			_, err := os.Lstat(filepath.Dir(path))
			return errors.Is(err, os.ErrNotExist)
		})
	}
	// Without a request there is none.
	if got := execute(t, s.dial(t), "echo ${SSH_AUTH_SOCK-none}", ""); got.Out != "none\n" {
		t.Errorf("without a request: %+v", got)
	}
}

// X11 forwarding gives the cookie to the image's xauth and connects displays to the client; without
// xauth it fails.
func TestX11(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "xauth"),
		[]byte("#!/bin/sh\nexec cat >$HOME/xauth.got\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := newSandbox(t, func(c *wire.GuestConfig) {
		c.Env = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	})
	client := s.dial(t)
	ch, reqs, err := client.OpenChannel(wire.ChannelSession, nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	request := ssh.Marshal(x11Request{Single: true, Protocol: "MIT-MAGIC-COOKIE-1",
		Cookie: "0123abcd"})
	if ok, err := ch.SendRequest(wire.RequestX11, true, request); !ok || err != nil {
		t.Fatalf("x11-req: %v, %v", ok, err)
	}
	incoming := client.HandleChannelOpen(wire.ChannelX11)
	if ok, err := ch.SendRequest(wire.RequestExec, true,
		wire.Marshal(wire.Exec{Command: "echo $DISPLAY; cat xauth.got; cat"})); !ok || err != nil {
		t.Fatalf("exec: %v, %v", ok, err)
	}
	got := expect(t, ch, "0123abcd\n")
	var display, screen int
	if _, err := fmt.Sscanf(got, "localhost:%d.%d\n", &display, &screen); err != nil {
		t.Fatalf("DISPLAY: %q: %v", got, err)
	}
	if want := fmt.Sprintf("add unix:%d.0 MIT-MAGIC-COOKIE-1 0123abcd\n",
		display); !strings.Contains(got, want) {
		t.Errorf("xauth got %q, want %q in it", got, want)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", x11Base+display))
	if err != nil {
		t.Fatal(err)
	}
	nc := <-incoming
	x, xreqs, err := nc.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(xreqs)
	go func() { _, _ = io.Copy(x, x); _ = x.CloseWrite() }()
	if got := talk(t, conn, "hello"); got != "hello" {
		t.Errorf("through the display: %q", got)
	}
	await(t, "a single connection was all", func() bool {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", x11Base+display),
			time.Second)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, unix.ECONNREFUSED)
	})

	without := newSandbox(t, func(c *wire.GuestConfig) { c.Env = []string{"PATH=" + t.TempDir()} })
	ch, reqs, err = without.dial(t).OpenChannel(wire.ChannelSession, nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(reqs)
	if ok, err := ch.SendRequest(wire.RequestX11, true, request); ok || err != nil {
		t.Errorf("without xauth: got %v, %v", ok, err)
	}
}

// lostConn is a connection that ends like those of x/crypto can: a pending open of a channel never
// returns.
type lostConn struct {
	ssh.Conn
	opening, over chan struct{}
}

func (c lostConn) OpenChannel(string, []byte) (ssh.Channel, <-chan *ssh.Request, error) {
	close(c.opening)
	<-c.over // the test's own
	return nil, nil, io.EOF
}

// A connection ends completely even if a pending open of a channel never returns, and connections
// accepted for it are closed.
func TestForwardIsOpenedAsItsConnectionEnds(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	lost := lostConn{opening: make(chan struct{}), over: make(chan struct{})}
	defer close(lost.over)
	c := &client{conn: &sshconn.Conn{Conn: lost}, ctx: ctx, slots: make(chan struct{}, 1)}
	l := listenLocal(t, "tcp", "127.0.0.1:0")
	c.listen(l, wire.ChannelForwardedTCP, func(net.Conn) []byte { return nil })
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-lost.opening
	end()
	l.Close()
	c.wg.Wait()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}
