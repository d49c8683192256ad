package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"slices"
	"testing"

	"golang.org/x/crypto/ssh"
)

// securityKey is a FIDO key in software. Its signatures say whether it was touched (OpenSSH,
// PROTOCOL.u2f).
type securityKey struct {
	public  ssh.PublicKey
	private ed25519.PrivateKey
	flags   byte // 1: touched, 4: its owner verified
}

const securityApplication = "ssh:"

func newSecurityKey(t testing.TB) *securityKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Type        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, public, securityApplication}))
	if err != nil {
		t.Fatal(err)
	}
	return &securityKey{public: k, private: private}
}

func (k *securityKey) PublicKey() ssh.PublicKey { return k.public }

func (k *securityKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	const counter = 7
	application, message := sha256.Sum256([]byte(securityApplication)), sha256.Sum256(data)
	tail := []byte{k.flags, 0, 0, 0, counter}
	signed := slices.Concat(application[:], tail, message[:])
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Blob: ed25519.Sign(k.private, signed),
		Rest: tail}, nil
}
