package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// FirstRunOptions configure FirstRun. File and Identity are required.
type FirstRunOptions struct {
	File     string        // authorized_keys to write; if it exists, FirstRun does nothing
	Identity ssh.PublicKey // key pair of the state directory
	SSHDir   string        // ~/.ssh of the invoking user; empty: none
	Agent    string        // path of the agent's socket (SSH_AUTH_SOCK); empty: none

	// Forwarded means that Agent is on another machine, for example because SSH_CONNECTION is set.
	// Its keys are not trusted. Nor are those of an agent whose socket an sshd serves.
	Forwarded bool
	Loopback  bool // all listeners are on loopback; otherwise only Identity is trusted
	Now       func() time.Time
}

// Trusted is a key that FirstRun wrote.
type Trusted struct {
	Fingerprint string
	Why         string
}

// FirstRun writes the invoking user's keys to a new authorized_keys file, each with time and
// reason, and returns them. It trusts the identity of the state directory, public keys in ~/.ssh
// with their private key beside them, and keys in a local agent. If the file exists, as on every
// later run, it returns nil and trusts nothing new. The caller must make sure that the store is
// empty, too.
func FirstRun(o FirstRunOptions) ([]Trusted, error) {
	if _, err := os.Lstat(o.File); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	w := &trustWriter{when: now().UTC().Format(time.RFC3339)}
	w.comment(
		"Keys that may log in to this daemon, in OpenSSH's authorized_keys format. The daemon " +
			"reads the file again")
	w.comment(
		`when it changes, and does not write it. Options besides sshd's: principal="NAME" kind="agent" role="watch".`)
	w.trust(o.Identity, "the key pair of this state directory")
	if o.Loopback {
		w.trustDir(o.SSHDir)
		if !o.Forwarded {
			w.trustAgent(o.Agent)
		}
	} else {
		w.comment("a listener is not on loopback: add your own keys here")
	}
	if err := writeNew(o.File, w.text.Bytes(), 0o600); err != nil {
		return nil, fmt.Errorf("first run: %w", err)
	}
	return w.trusted, nil
}

type trustWriter struct {
	when    string
	text    bytes.Buffer
	trusted []Trusted
}

func (w *trustWriter) comment(s string) { fmt.Fprintf(&w.text, "# %s\n", s) }

func (w *trustWriter) trust(key ssh.PublicKey, why string) {
	f := ssh.FingerprintSHA256(key)
	if slices.ContainsFunc(w.trusted, func(t Trusted) bool { return t.Fingerprint == f }) {
		return
	}
	why = strings.Map(func(r rune) rune { // file names and comments can contain anything
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, why)
	if err := weak(key); err != nil {
		w.comment(fmt.Sprintf("%s not trusted, %s: %v", f, why, err))
		return
	}
	w.comment(fmt.Sprintf("%s first run, %s", w.when, why))
	w.text.Write(ssh.MarshalAuthorizedKey(key))
	w.trusted = append(w.trusted, Trusted{Fingerprint: f, Why: why})
}

// trustDir trusts id_*.pub files with a private key. A public key alone may be another user's.
func (w *trustWriter) trustDir(dir string) {
	if dir == "" {
		return
	}
	public, _ := filepath.Glob(filepath.Join(dir, "id_*.pub")) // fails only for a bad pattern
	for _, path := range public {
		if info, err := os.Stat(strings.TrimSuffix(path, ".pub")); err != nil ||
			!info.Mode().IsRegular() {
			continue
		}
		key, err := readPublic(path)
		if err != nil {
			w.comment(fmt.Sprintf("%s not trusted: %q cannot be read", w.when, filepath.Base(path)))
			continue
		}
		w.trust(key, "your "+filepath.Base(path)+", with its private key beside it")
	}
}

func readPublic(path string) (ssh.PublicKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > 64<<10 {
		return nil, errors.New("not a public key file")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if _, cert := key.(*ssh.Certificate); err == nil && cert {
		return nil, errors.New("a certificate")
	}
	return key, err
}

// agentTimeout limits the wait for an agent, so that it cannot block the start.
const agentTimeout = 2 * time.Second

// trustAgent trusts the keys in a local agent.
func (w *trustWriter) trustAgent(socket string) {
	if socket == "" {
		return
	}
	c, err := (&net.Dialer{Timeout: agentTimeout}).DialContext(context.Background(), "unix", socket)
	if err != nil {
		w.comment(fmt.Sprintf("%s the agent does not answer", w.when))
		return
	}
	defer c.Close()
	if servedBySSHD(c) {
		w.comment(fmt.Sprintf("%s the agent is forwarded: add its keys here if you trust them",
			w.when))
		return
	}
	_ = c.SetDeadline(time.Now().Add(agentTimeout))
	keys, err := agent.NewClient(c).List()
	if err != nil {
		w.comment(fmt.Sprintf("%s the agent does not answer", w.when))
		return
	}
	for _, k := range keys {
		key, err := ssh.ParsePublicKey(k.Blob)
		if _, cert := key.(*ssh.Certificate); err != nil || cert {
			continue
		}
		w.trust(key, "in your agent, "+k.Comment)
	}
}
