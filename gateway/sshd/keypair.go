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

// KeyType is a type of key that KeyPair creates.
type KeyType string

// The key types.
const (
	ED25519 KeyType = "ed25519"
	RSA     KeyType = "rsa" // 3072 bits, for clients without ed25519
)

// KeyPair returns the private key in path. If there is none, it creates it, readable by its owner
// only, with path.pub beside it. A key that others can read, or that needs a passphrase, is an
// error.
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
		err = fmt.Errorf("unknown key type %q", t)
	}
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	if err := writeNew(path, pem.EncodeToMemory(block), 0o600); err != nil {
		if errors.Is(err, fs.ErrExist) { // created meanwhile by another process
			return readKey(path)
		}
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	if signer, err = ssh.NewSignerFromKey(private); err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	// An existing .pub belongs to a deleted private key.
	if err := os.Remove(path + ".pub"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	return signer, writePublic(path, signer.PublicKey(), comment)
}

// writePublic writes the public key beside a private key, if it is missing.
func writePublic(path string, key ssh.PublicKey, comment string) error {
	if _, err := os.Lstat(path + ".pub"); err == nil {
		return nil
	}
	line := bytes.TrimSuffix(ssh.MarshalAuthorizedKey(key), []byte("\n"))
	if err := writeNew(path+".pub", fmt.Appendf(line, " %s\n", comment), 0o644); err != nil &&
		!errors.Is(err, fs.ErrExist) {
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
		return nil,
			fmt.Errorf(
				"key %s: other users can read it (mode %#o); run chmod 600, or remove it to "+
					"create a new key", path, info.Mode().Perm())
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

// writeNew creates a file with this mode, whatever the umask. If it exists, writeNew fails. The
// file is complete when it appears, also after a power failure.
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
	// Unlike rename, link fails if the file exists.
	return os.Link(f.Name(), path)
}
