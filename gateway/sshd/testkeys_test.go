package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keyLine returns a line of authorized_keys.
func keyLine(options string, key ssh.PublicKey) string {
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	if options != "" {
		line = options + " " + line
	}
	return line + "\n"
}

// lookup returns the grant of a key that may log in, or nil.
func (k *Keys) lookup(key ssh.PublicKey) *grant { return k.look().keys[string(key.Marshal())] }

// authority returns the grant of a key that may sign certificates, or nil.
func (k *Keys) authority(key ssh.PublicKey) *grant {
	return k.look().signers[string(key.Marshal())]
}

// grantOf returns the grant of the successful login.
func grantOf(p *ssh.Permissions) *grant {
	if l := loginOf(p); l != nil {
		return l.grant
	}
	return nil
}

// writeKeys writes an authorized_keys file and returns its path.
func writeKeys(t testing.TB, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "authorized_keys")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
