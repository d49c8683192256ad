package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/adrg/xdg"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/connect"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// Options say how Dial gets in. The zero value works for a daemon of this user on this machine, and for any gateway whose
// host key is in ~/.ssh/known_hosts and that knows one of the user's keys.
type Options struct {
	// Create makes the sandbox if it does not exist, with the daemon's defaults.
	Create bool

	// Signers log in, first to last. nil means Identity, else the daemon's own client key in State, those
	// of ~/.ssh/id_ed25519, id_ecdsa and id_rsa that have no passphrase, and the ssh agent.
	Signers []ssh.Signer

	// Identity is a file with a private key without a passphrase.
	Identity string

	// KnownHosts are files that hold the gateway's host key. nil means State's own and ~/.ssh/known_hosts. A key that is in
	// none of them is refused; no key is learnt.
	KnownHosts []string

	// State is the state directory of a daemon on this machine. Empty means the default one.
	State string

	// DialTimeout bounds connecting and logging in. 0 is 30 s.
	DialTimeout time.Duration
}

// DefaultState is the state directory of a daemon that was given none: /var/lib/sandboxd-ssh for root, else
// $XDG_STATE_HOME/sandboxd-ssh.
func DefaultState() string {
	if os.Getuid() == 0 {
		return "/var/lib/sandboxd-ssh"
	}
	return filepath.Join(xdg.StateHome, "sandboxd-ssh")
}

// Dial connects to a sandbox through a gateway. uri is ssh://NAME@HOST:PORT, NAME@HOST:PORT, or NAME@ALIAS with an alias of
// the user's ssh configuration; NAME~SESSION says which session Shell("") means. ctx bounds the dial, not the connection. The caller closes the Client.
func Dial(ctx context.Context, uri string, o Options) (*Client, error) {
	target, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	if target.user == "" {
		return nil, &Error{Code: wire.CodeUsage, Message: fmt.Sprintf("ssh URI %q names no sandbox", uri), Hint: "write ssh://NAME@HOST:PORT"}
	}
	name, session := target.user, wire.DefaultSession
	if name != wire.Lobby {
		t, err := wire.ParseTarget(name)
		if err != nil {
			return nil, err
		}
		name, session = t.Sandbox, t.Session
	}
	if err := target.resolve(ctx); err != nil {
		return nil, err
	}
	if o.Create && name != wire.Lobby {
		if err := create(ctx, target, name, o); err != nil {
			return nil, err
		}
	}
	c := newClient(name, session)
	c.dial = func(ctx context.Context) (*link, error) { return login(ctx, target, name, o) }
	c.open = c.openStream
	if _, err := c.ssh(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// create asks the lobby for the sandbox. That it exists is what was wanted.
func create(ctx context.Context, target target, name string, o Options) error {
	lobby := newClient(wire.Lobby, "")
	lobby.dial = func(ctx context.Context) (*link, error) { return login(ctx, target, wire.Lobby, o) }
	defer lobby.Close()
	var stdout, stderr bytes.Buffer
	exit, err := lobby.Exec(ctx, Cmd{Command: "new --if-missing --json " + name, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if exit.Code == 0 {
		return nil
	}
	var answer struct {
		Error *Error `json:"error"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil || answer.Error == nil {
		return &Error{Code: wire.CodeUnavailable, Message: fmt.Sprintf("create %s: exit %d: %s", name, exit.Code, strings.TrimSpace(stderr.String()))}
	}
	return fmt.Errorf("create %s: %w", name, answer.Error)
}

// login makes one connection as user.
func login(ctx context.Context, t target, user string, o Options) (*link, error) {
	timeout := o.DialTimeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if o.State == "" {
		o.State = DefaultState()
	}
	keys, err := hostKeys(t, o)
	if err != nil {
		return nil, err
	}
	signers, closeAgent, err := signers(ctx, o, t.identities)
	if err != nil {
		return nil, err
	}
	defer closeAgent()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.addr())
	if err != nil {
		return nil, fmt.Errorf("gateway %s: %w", t.addr(), err)
	}
	peer := sandbox.Peer{Conn: conn, User: user, HostKeys: keys, Auth: []ssh.AuthMethod{ssh.PublicKeys(signers...)}}
	c, err := connect.SSH(ctx, peer) // owns conn
	if err != nil {
		return nil, fmt.Errorf("gateway %s as %s: %w", t.addr(), user, err)
	}
	return newLink(c), nil
}

// hostKeys returns the keys that known_hosts files have for the gateway.
func hostKeys(t target, o Options) ([]ssh.PublicKey, error) {
	files := o.KnownHosts
	if files == nil {
		files = append(files, filepath.Join(o.State, "known_hosts"))
		if home, err := os.UserHomeDir(); err == nil {
			files = append(files, filepath.Join(home, ".ssh", "known_hosts"))
		}
		files = slices.DeleteFunc(append(files, t.knownHosts...), func(f string) bool { _, err := os.Stat(f); return err != nil })
	}
	var keys []ssh.PublicKey
	if len(files) > 0 {
		db, err := knownhosts.NewDB(files...)
		if err != nil {
			return nil, fmt.Errorf("known_hosts: %w", err)
		}
		for _, k := range db.HostKeys(t.addr()) {
			keys = append(keys, k.PublicKey)
		}
	}
	if len(keys) == 0 {
		return nil, &Error{Code: wire.CodeDenied, Message: "the host key of " + t.addr() + " is not known",
			Hint: fmt.Sprintf("log in once with ssh -p %s %s and compare the fingerprint, or name the daemon's known_hosts file", t.port, t.host)}
	}
	return keys, nil
}

// signers returns the keys to log in with, and a function that ends the connection to an ssh agent.
func signers(ctx context.Context, o Options, identities []string) ([]ssh.Signer, func(), error) {
	none := func() {}
	switch {
	case o.Signers != nil:
		return o.Signers, none, nil
	case o.Identity != "":
		signer, err := readKey(o.Identity)
		if err != nil {
			return nil, nil, err
		}
		return []ssh.Signer{signer}, none, nil
	}
	var found []ssh.Signer
	seen := make(map[string]bool)
	add := func(signer ssh.Signer) {
		if id := string(signer.PublicKey().Marshal()); !seen[id] { // a server counts the keys that it is offered
			seen[id] = true
			found = append(found, signer)
		}
	}
	own := filepath.Join(o.State, "identity")
	signer, err := readKey(own)
	switch {
	case err == nil:
		add(signer)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
		return nil, nil, err
	}
	files := slices.Clone(identities)
	if home, err := os.UserHomeDir(); err == nil {
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			files = append(files, filepath.Join(home, ".ssh", name))
		}
	}
	for _, file := range files {
		// One that is missing, locked or of a kind that only an agent can use is passed over, as ssh does.
		if signer, err := readKey(file); err == nil {
			add(signer)
		}
	}
	closeAgent := none
	if path := os.Getenv("SSH_AUTH_SOCK"); path != "" {
		if conn, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
			more, err := sshagent.NewClient(conn).Signers()
			if err == nil && len(more) > 0 {
				for _, signer := range more {
					add(signer)
				}
				closeAgent = func() { conn.Close() }
			} else {
				conn.Close()
			}
		}
	}
	if len(found) == 0 {
		return nil, nil, &Error{Code: wire.CodeDenied, Message: "there is no key to log in with",
			Hint: "name one with Options.Identity, or make one with ssh-keygen and add it to the daemon's authorized_keys"}
	}
	return found, closeAgent, nil
}

func readKey(file string) (ssh.Signer, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return nil, fmt.Errorf("identity %s: %w", file, err)
	}
	return signer, nil
}
