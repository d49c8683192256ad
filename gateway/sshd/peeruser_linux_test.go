package sshd

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// nobodyUser is a user of this machine other than root and the tests' user.
const nobodyUser = 65534

// connectAs opens n idle connections to addr as another user, and returns when they are open.
func connectAs(t *testing.T, uid uint32, addr string, n int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("another user's programs are started by root alone")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(
		`for i in $(seq %d); do exec {fd}<>/dev/tcp/%s/%s; done; echo there; read`, n, host, port)
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "there\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
}

func TestPeerIsOurs(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Skipf("this machine has no such address: %v", err)
			}
			defer l.Close()
			near, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			far, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			if !peerIsOurs(far) {
				t.Error("a connection of the admin belongs to another user")
			}
			connectAs(t, nobodyUser, l.Addr().String(), 1)
			far, err = l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer far.Close()
			if peerIsOurs(far) {
				t.Error("another user's connection is ours")
			}
		})
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	if peerIsOurs(far) {
		t.Error("what is no TCP connection is ours")
	}
}

// Another user of this machine who fills all login slots does not block the admin's programs. Fifty
// of those at once block neither each other nor others.
func TestManyLoginsAtOnce(t *testing.T) {
	const logins = 50
	l := Limits{Own: 2 * logins, Unauthenticated: 8, EarlyDrop: 1, Grace: time.Hour,
		Exempt: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	w := newWorld(t, worldOptions{limits: l})
	all := func() {
		t.Helper()
		var wg sync.WaitGroup
		errs := make([]error, logins)
		for i := range logins {
			wg.Go(func() {
				c, err := w.tryDial("alice", "sandboxd")
				if errs[i] = err; err == nil {
					c.Close()
				}
			})
		}
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("login %d: %v", i, err)
			}
		}
	}
	all()
	connectAs(t, nobodyUser, w.addr, 100)
	all()
}
