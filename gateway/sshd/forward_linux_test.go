package sshd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/shortdir"
)

// echoServer answers each connection with its data in capitals, after its EOF.
func echoServer(t testing.TB, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				b, _ := io.ReadAll(c) // half-close must arrive
				_, _ = c.Write([]byte(strings.ToUpper(string(b))))
			})
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return l
}

// askEcho sends text, closes its direction, and returns the answer.
func askEcho(network, address, text string) (string, error) {
	c, err := net.DialTimeout(network, address, time.Minute)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func wantEcho(t testing.TB, network, address, text string) {
	t.Helper()
	got, err := askEcho(network, address, text)
	if err != nil || got != strings.ToUpper(text) {
		t.Errorf("by %s %s: got %.40q of %d bytes, err %v", network, address, got, len(got), err)
	}
}

// shortDir returns a directory with a name short enough for a socket path.
func shortDir(t testing.TB) string {
	t.Helper()
	return shortdir.New(t)
}

// startReady runs a program in the background until the test ends, and returns when it prints
// ready.
func startReady(t testing.TB, c *exec.Cmd, ready string) {
	t.Helper()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.StdinPipe() // open until the end
	if err != nil {
		t.Fatal(err)
	}
	var errs syncBuffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); c.Process.Kill(); c.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != ready {
		t.Fatalf("%q: said %q, %v: %s", c.Args, line, err, &errs)
	}
}

func TestForwards(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	tcp := echoServer(t, "tcp", "127.0.0.1:0").Addr().String()
	dir := shortDir(t)
	unix := echoServer(t, "unix", filepath.Join(dir, "echo")).Addr().String()
	big := strings.Repeat("0123456789abcdef", 1<<16)
	hold := "echo ready; cat >/dev/null"

	t.Run("-L", func(t *testing.T) {
		port := openssh.FreePort(t)
		startReady(t, w.ssh("alice", "-o", "ExitOnForwardFailure=yes", "-L", port+":"+tcp,
			"demo@127.0.0.1", hold), "ready")
		wantEcho(t, "tcp", "127.0.0.1:"+port, "local")
		wantEcho(t, "tcp", "127.0.0.1:"+port, big)
	})
	t.Run("-L of unix sockets", func(t *testing.T) {
		local := filepath.Join(dir, "local")
		startReady(t, w.ssh("alice", "-o", "ExitOnForwardFailure=yes", "-L", local+":"+unix,
			"demo@127.0.0.1", hold), "ready")
		wantEcho(t, "unix", local, big)
	})
	t.Run("-R", func(t *testing.T) {
		port := openssh.FreePort(t)
		startReady(t, w.ssh("alice", "-o", "ExitOnForwardFailure=yes", "-R", port+":"+tcp,
			"demo@127.0.0.1", hold), "ready")
		wantEcho(t, "tcp", "127.0.0.1:"+port, "remote")
		wantEcho(t, "tcp", "127.0.0.1:"+port, big)
	})
	t.Run("-R of unix sockets", func(t *testing.T) {
		remote := filepath.Join(dir, "remote")
		startReady(t, w.ssh("alice", "-o", "ExitOnForwardFailure=yes", "-R", remote+":"+unix,
			"demo@127.0.0.1", hold), "ready")
		wantEcho(t, "unix", remote, big)
	})
	t.Run("-D", func(t *testing.T) {
		port := openssh.FreePort(t)
		startReady(t, w.ssh("alice", "-o", "ExitOnForwardFailure=yes", "-D", port, "demo@127.0.0.1",
			hold), "ready")
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, p, _ := net.SplitHostPort(tcp)
		var n int
		fmt.Sscan(p, &n)
		// SOCKS5, RFC 1928
		c.Write([]byte{5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, byte(n >> 8), byte(n)})
		if _, err := io.ReadFull(c, make([]byte, 2+10)); err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "socks")
		c.(*net.TCPConn).CloseWrite()
		if got := readAll(t, c); got != "SOCKS" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("-W", func(t *testing.T) {
		got := outcome(t, w.ssh("alice", "-W", tcp, "demo@127.0.0.1"), "stdio")
		if got != (result{stdout: "STDIO"}) {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("nothing listens", func(t *testing.T) {
		c, err := w.dial("alice", "demo").Dial("tcp", "127.0.0.1:"+openssh.FreePort(t))
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) || refused.Reason != ssh.ConnectionFailed ||
			!strings.Contains(refused.Message, "refused") {
			t.Errorf("got %v, %v, want the sandbox's reason", c, err)
		}
	})
	t.Run("port 0 twice by two clients, and cancelled by one", func(t *testing.T) {
		listen := func() (*ssh.Client, net.Listener) {
			c := w.dial("alice", "demo")
			l, err := c.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			return c, l
		}
		_, one := listen()
		_, two := listen()
		if one.Addr().String() == two.Addr().String() {
			t.Fatalf("both listen on %s", one.Addr())
		}
		one.Close()
		go func() {
			if c, err := two.Accept(); err == nil {
				io.WriteString(c, "two")
				c.Close()
			}
		}()
		c, err := net.Dial("tcp", two.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := readAll(t, c); got != "two" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("a listener ends with its connection", func(t *testing.T) {
		c := w.dial("alice", "demo")
		l, err := c.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		eventually(t, "the port is free", func() bool {
			n, err := net.Dial("tcp", l.Addr().String())
			if err == nil {
				n.Close()
			}
			return err != nil
		})
	})
	t.Run("-N", func(t *testing.T) {
		port := openssh.FreePort(t)
		c := w.ssh("alice", "-N", "-L", port+":"+tcp, "demo@127.0.0.1")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { c.Process.Kill(); c.Wait() }()
		eventually(t, "ssh -N forwards", func() bool {
			got, err := askEcho("tcp", "127.0.0.1:"+port, "n")
			return err == nil && got == "N"
		})
	})
}

func TestControlMaster(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	control := filepath.Join(shortDir(t), "c")
	startReady(t, w.ssh("alice", "-M", "-S", control, "demo@127.0.0.1",
		"echo ready; cat >/dev/null"), "ready")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			got := outcome(t, w.ssh("no", "-S", control, "demo@127.0.0.1",
				fmt.Sprintf("echo %d; exit %d", i, i)), "")
			if want := (result{stdout: fmt.Sprintf("%d\n", i), exit: i}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	all.Wait()
	if n := strings.Count(w.log.String(), `msg="logged in"`); n != 1 {
		t.Errorf("%d logins, want 1", n)
	}
}

// Two users with agents in one sandbox: each command reaches the agent of its own user.
func TestAgentsNeverCross(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.sandbox("demo")
	one, oneKey := startAgent(t)
	two, twoKey := startAgent(t)
	var all sync.WaitGroup
	for range 5 {
		for socket, key := range map[string]ssh.PublicKey{one: oneKey, two: twoKey} {
			all.Go(func() {
				c := w.ssh("alice", "-A", "-o", "IdentityAgent=none", "demo@127.0.0.1",
					"ssh-add -L; sleep 0.1; ssh-add -L")
				c.Args = replace(c.Args, "IdentityAgent=none", "IdentityAgent="+socket)
				got := outcome(t, c, "")
				want := strings.Fields(keyLine("", key))[1]
				lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
				if got.exit != 0 || len(lines) != 2 || !strings.Contains(lines[0], want) ||
					!strings.Contains(lines[1], want) {
					t.Errorf("got %+v, want %s twice", got, want)
				}
			})
		}
	}
	all.Wait()
	// Without -A there is none.
	got := outcome(t, w.ssh("alice", "demo@127.0.0.1", "echo \"${SSH_AUTH_SOCK-none}\""), "")
	if got.stdout != "none\n" {
		t.Errorf("without -A: %+v", got)
	}
}

func replace(args []string, old, with string) []string {
	out := append([]string(nil), args...)
	for i := range out {
		if out[i] == old {
			out[i] = with
		}
	}
	return out
}
