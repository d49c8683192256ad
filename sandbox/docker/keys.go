package docker

import (
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

// stateDir is the directory of all instances' state, with a directory for each.
type stateDir string

func (d stateDir) dir(id string) string    { return filepath.Join(string(d), id) }
func (d stateDir) runDir(id string) string { return filepath.Join(string(d), id, "run") } // sockets

// keys is the content of keys.json: the guest's configuration, and our client key. It leaves this
// machine only on the guest's standard input.
type keys struct {
	Guest     wire.GuestConfig `json:"guest"`
	ClientKey string           `json:"client_key"` // private, OpenSSH PEM
}

// newKeys generates the two keys of a sandbox and adds them to config.
func newKeys(config wire.GuestConfig) (keys, error) {
	_, host, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return keys{}, err
	}
	_, client, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return keys{}, err
	}
	hostPEM, err := ssh.MarshalPrivateKey(host, "")
	if err != nil {
		return keys{}, err
	}
	clientPEM, err := ssh.MarshalPrivateKey(client, "")
	if err != nil {
		return keys{}, err
	}
	public, err := ssh.NewPublicKey(client.Public())
	if err != nil {
		return keys{}, err
	}
	config.HostKey = string(pem.EncodeToMemory(hostPEM))
	config.ClientKey = string(ssh.MarshalAuthorizedKey(public))
	return keys{Guest: config, ClientKey: string(pem.EncodeToMemory(clientPEM))}, nil
}

// line is the first line that the guest reads.
func (k keys) line() ([]byte, error) {
	b, err := json.Marshal(k.Guest)
	return append(b, '\n'), err
}

// peer returns the credentials to log in to the guest, without a connection.
func (k keys) peer() (sandbox.Peer, error) {
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

func (d stateDir) keysPath(id string) string { return filepath.Join(d.dir(id), "keys.json") }

func (d stateDir) readKeys(id string) (keys, error) {
	var k keys
	return k, readJSON(d.keysPath(id), &k)
}

// note is the content of name.json, from which a lost store can be rebuilt. The sandbox cannot see
// it.
type note struct {
	Name     string           `json:"name"`
	Instance sandbox.Instance `json:"instance"`
}

func (d stateDir) notePath(id string) string { return filepath.Join(d.dir(id), "name.json") }

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

// writeJSON writes v to path, atomically, readable by this user only.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
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
