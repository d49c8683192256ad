//go:build linux

package proc

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox/session"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestSSH follows ssh from its own questions, which a probe sees, to the remote side, which it
// cannot see.
func TestSSH(t *testing.T) {
	needs(t, "ssh")
	addr := sshServer(t, "secret")
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	x := open(t, "ssh", "-F", "none", "-p", port, "-o", "StrictHostKeyChecking=ask", "-o",
		"UserKnownHostsFile="+filepath.Join(t.TempDir(), "known"),
		"-o", "PreferredAuthentications=password", "-o", "PubkeyAuthentication=no", "-o",
		"IdentityAgent=none", "someone@"+host)
	x.until("asking for the host key", func(f session.Facts) bool {
		return f.Blocked && !f.Opaque && f.Want == wire.WantLine
	})
	x.typ("yes\n")
	x.until("asking for the password", func(f session.Facts) bool {
		return f.Blocked && !f.Opaque && f.Want == wire.WantPassword
	})
	x.typ("secret\n")
	f := x.until("opaque", func(f session.Facts) bool { return f.Opaque })
	if f.Blocked || !f.Listens {
		t.Errorf("got %+v, want listening", f)
	}
}

// sshServer accepts clients with the password, and gives each a terminal without output.
func sshServer(t *testing.T, password string) (addr string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{PasswordCallback: func(_ ssh.ConnMetadata, p []byte) (
		*ssh.Permissions, error) {
		if string(p) != password {
			return nil, errors.New("wrong")
		}
		return nil, nil
	}}
	config.AddHostKey(signer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serveSSH(c, config, &wg) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait() // the client has been killed before
	})
	return l.Addr().String()
}

func serveSSH(c net.Conn, config *ssh.ServerConfig, wg *sync.WaitGroup) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		return
	}
	wg.Go(func() { ssh.DiscardRequests(requests) })
	for offered := range channels {
		ch, asked, err := offered.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			for r := range asked {
				_ = r.Reply(true, nil)
			}
		})
		wg.Go(func() { _, _ = io.Copy(io.Discard, ch) })
	}
}
