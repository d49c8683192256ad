// Package guestconfig has what the backends that boot our guest share: the keys of a sandbox and
// where the daemon keeps them, locks of instances, and the checks of a specification that need no
// engine.
package guestconfig

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Keys are what a sandbox and the daemon know each other by. They leave this machine only on the
// guest's standard input.
type Keys struct {
	Guest     wire.GuestConfig `json:"guest"`      // with the guest's private key
	ClientKey string           `json:"client_key"` // the daemon's, private, OpenSSH PEM
}

// Listens reports whether the guest listens for the daemon; otherwise it calls a socket of the
// daemon.
func (k Keys) Listens() bool { return len(k.Guest.Listen) > 0 }

// NewKeys generates the two keys of a sandbox and adds them to config.
func NewKeys(config wire.GuestConfig) (Keys, error) {
	_, host, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Keys{}, err
	}
	_, client, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Keys{}, err
	}
	hostPEM, err := ssh.MarshalPrivateKey(host, "")
	if err != nil {
		return Keys{}, err
	}
	clientPEM, err := ssh.MarshalPrivateKey(client, "")
	if err != nil {
		return Keys{}, err
	}
	public, err := ssh.NewPublicKey(client.Public())
	if err != nil {
		return Keys{}, err
	}
	config.HostKey = string(pem.EncodeToMemory(hostPEM))
	config.ClientKey = string(ssh.MarshalAuthorizedKey(public))
	return Keys{Guest: config, ClientKey: string(pem.EncodeToMemory(clientPEM))}, nil
}

// Line is the first line that the guest reads.
func (k Keys) Line() ([]byte, error) {
	b, err := json.Marshal(k.Guest)
	return append(b, '\n'), err
}

// Peer returns the credentials to log in to the guest, without a connection.
func (k Keys) Peer() (sandbox.Peer, error) {
	host, err := ssh.ParsePrivateKey([]byte(k.Guest.HostKey))
	if err != nil {
		return sandbox.Peer{}, fmt.Errorf("host key: %w", err)
	}
	client, err := ssh.ParsePrivateKey([]byte(k.ClientKey))
	if err != nil {
		return sandbox.Peer{}, fmt.Errorf("client key: %w", err)
	}
	return sandbox.Peer{User: "sandbox", HostKeys: []ssh.PublicKey{host.PublicKey()},
		Auth: []ssh.AuthMethod{ssh.PublicKeys(client)}}, nil
}

// User returns the user of the sessions, for display.
func (k Keys) User() string { return cmp.Or(k.Guest.User, "root") }

// State is a directory with a directory for each instance. Only the daemon's user may read it.
type State string

// Dir returns the directory of an instance. It must exist before the methods below write to it.
func (s State) Dir(id string) string { return filepath.Join(string(s), id) }

// KeysPath returns the file with the keys of an instance.
func (s State) KeysPath(id string) string { return filepath.Join(s.Dir(id), "keys.json") }

// ReadKeys returns the keys of an instance. A missing file is fs.ErrNotExist.
func (s State) ReadKeys(id string) (Keys, error) {
	var k Keys
	return k, readJSON(s.KeysPath(id), &k)
}

// WriteKeys stores the keys of an instance.
func (s State) WriteKeys(id string, k Keys) error { return writeJSON(s.KeysPath(id), k) }

// Note is what a lost store can be rebuilt from. The sandbox cannot see it.
type Note struct {
	Name     string           `json:"name"`
	Instance sandbox.Instance `json:"instance"`
}

// NotePath returns the file with the note of an instance.
func (s State) NotePath(id string) string { return filepath.Join(s.Dir(id), "name.json") }

// ReadNote returns the note of an instance. A missing file is fs.ErrNotExist.
func (s State) ReadNote(id string) (Note, error) {
	var n Note
	return n, readJSON(s.NotePath(id), &n)
}

// WriteNote stores the note of an instance.
func (s State) WriteNote(id string, n Note) error { return writeJSON(s.NotePath(id), n) }

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteFile(path, data)
}

// WriteFile writes a file of this user alone, whole or not at all, also if the machine stops.
func WriteFile(path string, data []byte) error {
	tmp, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer tmp.Close()
	if _, err := tmp.Write(data); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
