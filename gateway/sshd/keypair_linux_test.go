package sshd

import (
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

func TestKeyPair(t *testing.T) {
	old := syscall.Umask(0) // the modes must not depend on it
	defer syscall.Umask(old)
	for _, kind := range []KeyType{ED25519, RSA} {
		path := filepath.Join(t.TempDir(), "key")
		made, err := KeyPair(path, kind, "me@here")
		if err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]os.FileMode{path: 0o600, path + ".pub": 0o644} {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("%s: mode %v, want %v", file, got, want)
			}
		}
		again, err := KeyPair(path, kind, "other")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := ssh.FingerprintSHA256(again.PublicKey()),
			ssh.FingerprintSHA256(made.PublicKey()); got != want {
			t.Errorf("read %s, made %s", got, want)
		}
		public, err := os.ReadFile(path + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(made.PublicKey()))) +
			" me@here\n"; string(public) != want {
			t.Errorf("public half is %q, want %q", public, want)
		}
		if err := weak(made.PublicKey()); err != nil {
			t.Errorf("we would not accept our own key: %v", err)
		}
	}
}

func TestKeyPairRefused(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if _, err := KeyPair(open, ED25519, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{open, broken, filepath.Join(dir, "missing", "key")} {
		if _, err := KeyPair(path, ED25519, ""); err == nil ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names it", path, err)
		}
	}
}

// Several daemons that start at the same time get the same key.
func TestKeyPairAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	prints := make([]string, 8)
	var all sync.WaitGroup
	for i := range prints {
		all.Go(func() {
			if s, err := KeyPair(path, ED25519, ""); err != nil {
				t.Error(err)
			} else {
				prints[i] = ssh.FingerprintSHA256(s.PublicKey())
			}
		})
	}
	all.Wait()
	for _, p := range prints {
		if p != prints[0] {
			t.Errorf("keys differ: %q", prints)
		}
	}
}

// home creates a ~/.ssh with a key pair, a public key alone, and an RSA key that is too short.
func home(t *testing.T) (dir string, own, alone ssh.PublicKey) {
	t.Helper()
	dir = t.TempDir()
	signer, err := KeyPair(filepath.Join(dir, "id_ed25519"), ED25519, "own")
	if err != nil {
		t.Fatal(err)
	}
	other := newSigner(t)
	if err := os.WriteFile(filepath.Join(dir, "id_colleague.pub"),
		[]byte(keyLine("", other.PublicKey())), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "id_odd.pub"), []byte("nonsense"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "id_odd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, signer.PublicKey(), other.PublicKey()
}

// startAgent serves an agent with one key on a socket.
func startAgent(t *testing.T) (socket string, held ssh.PublicKey) {
	t.Helper()
	dir := shortDir(t)
	path := filepath.Join(t.TempDir(), "key")
	signer, err := KeyPair(path, ED25519, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if block, _ := pem.Decode(b); block == nil {
		t.Fatal("no PEM")
	}
	private, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: private,
		Comment: "a \x1b[2J comment"}); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
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
			serving.Go(func() { agent.ServeAgent(ring, c); c.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return socket, signer.PublicKey()
}

func TestFirstRun(t *testing.T) {
	identity := newSigner(t).PublicKey()
	dir, own, alone := home(t)
	socket, held := startAgent(t)
	for _, tt := range []struct {
		name    string
		o       FirstRunOptions
		trusted []ssh.PublicKey
	}{
		{"everything local", FirstRunOptions{SSHDir: dir, Agent: socket, Loopback: true}, []ssh.PublicKey{identity, own, held}},
		{"a forwarded agent", FirstRunOptions{SSHDir: dir, Agent: socket, Forwarded: true, Loopback: true}, []ssh.PublicKey{identity, own}},
		{"not only loopback", FirstRunOptions{SSHDir: dir, Agent: socket}, []ssh.PublicKey{identity}},
		{"nothing there", FirstRunOptions{SSHDir: filepath.Join(dir, "none"), Agent: filepath.Join(dir, "none"), Loopback: true}, []ssh.PublicKey{identity}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.File, tt.o.Identity = filepath.Join(t.TempDir(), "authorized_keys"), identity
			tt.o.Now = func() time.Time { return testTime }
			trusted, err := FirstRun(tt.o)
			if err != nil {
				t.Fatal(err)
			}
			k := OpenKeys(tt.o.File, "owner", nil)
			for i, key := range tt.trusted {
				if k.lookup(key) == nil {
					t.Errorf("%s is not let in", ssh.FingerprintSHA256(key))
				}
				if i >= len(trusted) || trusted[i].Fingerprint != ssh.FingerprintSHA256(key) {
					t.Errorf("returned %v, want %s at %d", trusted, ssh.FingerprintSHA256(key), i)
				}
			}
			if len(trusted) != len(tt.trusted) || k.lookup(alone) != nil {
				t.Errorf("trusts %v", trusted)
			}
			b, err := os.ReadFile(tt.o.File)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(b), "2027-01-01T00:00:00Z first run") ||
				strings.ContainsRune(string(b), 0x1b) {
				t.Errorf("the file says:\n%s", b)
			}
			// A later run trusts nothing new.
			tt.o.Identity = newSigner(t).PublicKey()
			if again, err := FirstRun(tt.o); err != nil || again != nil {
				t.Errorf("second run: %v, %v", again, err)
			}
			if after, _ := os.ReadFile(tt.o.File); string(after) != string(b) {
				t.Error("the second run wrote")
			}
		})
	}
}

const listenAs = `
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen(8)
print("ready", flush=True)
while True: s.accept()
`

// An agent behind an sshd is on another machine, whatever the environment says.
func TestServedBySSHD(t *testing.T) {
	for name, want := range map[string]bool{"sshd": true, "ssh-agent": false} {
		dir := shortDir(t)
		real, err := filepath.EvalSymlinks(python)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(real, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		socket := filepath.Join(dir, "s")
		c := exec.Command(filepath.Join(dir, name), "-c", listenAs, socket)
		startReady(t, c, "ready")
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if got := servedBySSHD(conn); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		conn.Close()
	}
}
