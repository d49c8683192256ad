package sshd

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
)

// KeyType is the kind of a key pair that KeyPair makes.
type KeyType string

// The key types.
const (
	ED25519 KeyType = "ed25519"
	RSA     KeyType = "rsa" // 3072 bits, for clients without ed25519
)

// KeyPair returns the private key in path and makes it first if there is none: path, readable by the owner alone, and
// path.pub beside it. A key that others can read, or that needs a passphrase, is refused rather than replaced.
func KeyPair(path string, t KeyType, comment string) (ssh.Signer, error) {
	signer, err := readKey(path)
	if err == nil {
		return signer, writePublic(path, signer.PublicKey(), comment)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var private crypto.PrivateKey
	switch t {
	case ED25519:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case RSA:
		private, err = rsa.GenerateKey(rand.Reader, 3072)
	default:
		err = fmt.Errorf("key type %q is unknown", t)
	}
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	if err := writeNew(path, pem.EncodeToMemory(block), 0o600); err != nil {
		if errors.Is(err, fs.ErrExist) { // somebody else made it meanwhile
			return readKey(path)
		}
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	if signer, err = ssh.NewSignerFromKey(private); err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	// One that is there belongs to a private key that is gone.
	if err := os.Remove(path + ".pub"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	return signer, writePublic(path, signer.PublicKey(), comment)
}

// writePublic writes the public half beside a private key, unless it is there.
func writePublic(path string, key ssh.PublicKey, comment string) error {
	if _, err := os.Lstat(path + ".pub"); err == nil {
		return nil
	}
	line := bytes.TrimSuffix(ssh.MarshalAuthorizedKey(key), []byte("\n"))
	if err := writeNew(path+".pub", fmt.Appendf(line, " %s\n", comment), 0o644); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("key %s: %w", path, err)
	}
	return nil
}

func readKey(path string) (ssh.Signer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key %s: others can read it (mode %#o); chmod 600 it, or remove it to have a new one made", path, info.Mode().Perm())
	}
	b := make([]byte, 64<<10)
	n, err := f.Read(b)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	signer, err := ssh.ParsePrivateKey(b[:n])
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	return signer, nil
}

// writeNew makes a file that must not exist, whatever the umask. It is there whole or not at all, also after a power cut:
// whoever finds it may read it.
func writeNew(path string, b []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // O_EXCL, 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	// Unlike a rename it fails where there is a file.
	return os.Link(f.Name(), path)
}
