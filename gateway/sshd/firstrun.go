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

// FirstRunOptions say whom a first run trusts. File and Identity are required.
type FirstRunOptions struct {
	File     string        // authorized_keys to write; if it exists, nothing happens
	Identity ssh.PublicKey // the key pair in the state directory
	SSHDir   string        // the invoking user's ~/.ssh; empty looks at none
	Agent    string        // path of the agent's socket (SSH_AUTH_SOCK); empty asks none

	// Forwarded says that Agent leads to another machine (SSH_CONNECTION is set, say): its keys are not this user's
	// presence here, and are not trusted. An agent whose socket an sshd serves is not asked either.
	Forwarded bool
	Loopback  bool // every listener is on loopback; otherwise only Identity is trusted
	Now       func() time.Time
}

// Trusted is a key that FirstRun wrote.
type Trusted struct {
	Fingerprint string
	Why         string
}

// FirstRun writes the keys of the invoking user into a new authorized_keys file, each with when and why, and returns them.
// Trusted are the identity of the state directory, public keys in ~/.ssh whose private half is beside them, and what a
// local agent holds. When the file exists – on every later run – it returns nil and trusts nothing new. The store must be
// empty too: that is for the caller to know.
func FirstRun(o FirstRunOptions) ([]Trusted, error) {
	if _, err := os.Lstat(o.File); !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	w := &trustWriter{when: now().UTC().Format(time.RFC3339)}
	w.comment("Who may log in to this daemon, in the form of OpenSSH's authorized_keys. The daemon reads it again when it")
	w.comment(`changes and never writes it again. Beside sshd's options: principal="NAME" kind="agent" role="watch".`)
	w.trust(o.Identity, "the key pair of this state directory")
	if o.Loopback {
		w.trustDir(o.SSHDir)
		if !o.Forwarded {
			w.trustAgent(o.Agent)
		}
	} else {
		w.comment("not only loopback is listened on: the user's own keys are left for you to add")
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
	why = strings.Map(func(r rune) rune { // file names and comments may hold anything
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

// trustDir trusts id_*.pub with a private half. A public key alone says nothing: it may be a colleague's.
func (w *trustWriter) trustDir(dir string) {
	if dir == "" {
		return
	}
	public, _ := filepath.Glob(filepath.Join(dir, "id_*.pub")) // only a bad pattern is an error
	for _, path := range public {
		if info, err := os.Stat(strings.TrimSuffix(path, ".pub")); err != nil || !info.Mode().IsRegular() {
			continue
		}
		key, err := readPublic(path)
		if err != nil {
			w.comment(fmt.Sprintf("%s not trusted: %q cannot be read", w.when, filepath.Base(path)))
			continue
		}
		w.trust(key, "your "+filepath.Base(path)+", whose private half is beside it")
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

// agentTimeout bounds an agent that does not answer: starting must not depend on it.
const agentTimeout = 2 * time.Second

// trustAgent trusts what a local agent holds.
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
		w.comment(fmt.Sprintf("%s the agent is a forwarded one: its keys are left for you to add", w.when))
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
		w.trust(key, "held by your agent, "+k.Comment)
	}
}
