package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"github.com/sandboxd/sandboxd/sandbox"
)

// fileError is an error of a file with credentials.
type fileError struct{ error }

func (e *fileError) Unwrap() error { return e.error }

// UnknownKeyError is a host key that is neither in a known_hosts file nor accepted by its
// fingerprint.
type UnknownKeyError struct {
	Host        string
	Fingerprint string // of the presented key, SHA256:…
	Type        string
	Line        string // line for a known_hosts file that accepts it
	Accepted    string // the fingerprint that was given, and differs; empty if none was given
}

func (e *UnknownKeyError) Error() string {
	if e.Accepted != "" {
		return fmt.Sprintf("the host key of %s differs from the accepted one: it presents %s %s",
			e.Host, e.Type, e.Fingerprint)
	}
	return fmt.Sprintf("the host key of %s is not known: %s %s", e.Host, e.Type, e.Fingerprint)
}

// ChangedKeyError is a host key that differs from the known one. No flag accepts it.
type ChangedKeyError struct {
	Host        string
	Fingerprint string
	Where       string // file and line that has another one; empty if the sandbox's own record does
}

func (e *ChangedKeyError) Error() string {
	s := fmt.Sprintf("the host key of %s has CHANGED: it presents %s", e.Host, e.Fingerprint)
	if e.Where != "" {
		s += ", " + e.Where + " has another"
	}
	return s
}

// supported are the host key types that this side can verify, in order of preference.
var supported = []string{
	ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01,
	ssh.CertAlgoECDSA521v01, ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
}

// hostKeys returns which host keys e may present: those of known_hosts files, or the pinned ones.
// It calls accepted with a key that is in no file and has the fingerprint accept.
func (e endpoint) hostKeys(pinned []string, accept string, accepted func(ssh.PublicKey)) (
	known func(ssh.PublicKey) error, algorithms []string, keys []ssh.PublicKey, err error) {
	for _, line := range pinned {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, nil, nil, fmt.Errorf("pinned host key: %w", err)
		}
		keys = append(keys, key)
	}
	if len(keys) > 0 {
		return func(key ssh.PublicKey) error {
			if slices.ContainsFunc(keys,
				func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) }) {
				return nil
			}
			return &ChangedKeyError{Host: e.keyName(), Fingerprint: ssh.FingerprintSHA256(key)}
		}, algorithmsOf(keys), keys, nil
	}
	files := slices.DeleteFunc(slices.Clone(e.known),
		func(f string) bool { _, err := os.Stat(f); return err != nil })
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("known_hosts: %w", err)
	}
	wanted := supported
	if len(e.algorithms) > 0 {
		wanted = slices.DeleteFunc(slices.Clone(e.algorithms),
			func(a string) bool { return !slices.Contains(supported, a) })
	}
	if have := db.HostKeyAlgorithms(e.keyName()); len(have) > 0 {
		algorithms = slices.DeleteFunc(slices.Clone(wanted),
			func(a string) bool { return !slices.Contains(have, a) })
	}
	if len(algorithms) == 0 { // an unknown host: its certificate would be from an unknown authority
		algorithms = slices.DeleteFunc(slices.Clone(wanted),
			func(a string) bool { return strings.Contains(a, "-cert-") })
	}
	for _, k := range db.HostKeys(e.keyName()) {
		if !k.Cert {
			keys = append(keys, k.PublicKey)
		}
	}
	check := db.HostKeyCallback()
	nowhere := &net.TCPAddr{IP: net.IPv4zero} // a proxy has no address; the name decides
	return func(key ssh.PublicKey) error {
		err := check(e.keyName(), nowhere, key)
		fingerprint := ssh.FingerprintSHA256(key)
		switch {
		case err == nil:
			return nil
		case knownhosts.IsHostKeyChanged(err):
			changed := &ChangedKeyError{Host: e.keyName(), Fingerprint: fingerprint}
			var which *xknownhosts.KeyError
			if errors.As(err, &which) && len(which.Want) > 0 {
				changed.Where = fmt.Sprintf("%s:%d", which.Want[0].Filename, which.Want[0].Line)
			}
			return changed
		case knownhosts.IsHostUnknown(err):
			if _, cert := key.(*ssh.Certificate); !cert && accept != "" && accept == fingerprint {
				accepted(key)
				return nil
			}
			return &UnknownKeyError{Host: e.keyName(), Fingerprint: fingerprint, Type: key.Type(),
				Line: knownhosts.Line([]string{e.keyName()}, key), Accepted: accept}
		}
		// Revoked, or an invalid certificate.
		return fmt.Errorf("the host key of %s: %w", e.keyName(), err)
	}, algorithms, keys, nil
}

func algorithmsOf(keys []ssh.PublicKey) []string {
	var all []string
	for _, key := range keys {
		if key.Type() == ssh.KeyAlgoRSA {
			all = append(all, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
			continue
		}
		all = append(all, key.Type())
	}
	return all
}

// auth returns the ways to log in, and describes in words which were tried and left out.
func (e endpoint) auth(h sandbox.Host) ([]ssh.AuthMethod, string, error) {
	var signers []ssh.Signer
	var words []string
	if h.Identity != "" {
		key, err := readKey(h.Identity)
		if err != nil {
			return nil, "", err
		}
		signers = append(signers, key...)
		words = append(words, "the key "+h.Identity+expired(key))
	} else {
		seen := make(map[string]bool)
		for _, file := range e.identities {
			keys, err := readKey(file)
			if locked := (*ssh.PassphraseMissingError)(nil); errors.As(err, &locked) {
				words = append(words, file+" was skipped: it has a passphrase; add it to the agent")
			}
			for _, key := range keys {
				seen[string(key.PublicKey().Marshal())] = true
				signers = append(signers, key)
				words = append(words, file+expired([]ssh.Signer{key}))
			}
		}
		fromAgent, err := agentKeys(e.agent)
		if err != nil {
			words = append(words, "the agent did not answer")
		}
		n := 0
		for _, key := range fromAgent {
			if !seen[string(key.PublicKey().Marshal())] && (!e.only || e.names(key.PublicKey())) {
				signers = append(signers, key)
				n++
			}
		}
		if n > 0 {
			words = append(words, fmt.Sprintf("%d keys of the agent", n))
		}
	}
	var methods []ssh.AuthMethod
	if len(signers) > 0 {
		methods = append(methods, ssh.PublicKeys(signers...))
	}
	if h.PasswordFile != "" {
		b, err := os.ReadFile(h.PasswordFile)
		if err != nil {
			return nil, "", &fileError{fmt.Errorf("password file: %w", err)}
		}
		password, _, _ := strings.Cut(string(b), "\n")
		password = strings.TrimSuffix(password, "\r")
		methods = append(methods, ssh.Password(password), ssh.KeyboardInteractive(
			func(_, _ string, questions []string, echos []bool) ([]string, error) {
				if len(questions) == 0 {
					return nil, nil
				}
				if len(questions) > 1 || echos[0] {
					return nil, errors.New("the server asks for other input than a password")
				}
				return []string{password}, nil
			}))
		words = append(words, "the password of "+h.PasswordFile)
	}
	if len(words) == 0 {
		words = append(words, "no key was found")
	}
	return methods, strings.Join(words, ", "), nil
}

// names reports whether the configuration names a file of this key: with IdentitiesOnly an agent
// may sign only with those.
func (e endpoint) names(key ssh.PublicKey) bool {
	return slices.ContainsFunc(e.identities, func(file string) bool {
		b, err := os.ReadFile(strings.TrimSuffix(file, ".pub") + ".pub")
		if err != nil {
			return false
		}
		named, _, _, _, err := ssh.ParseAuthorizedKey(b)
		return err == nil && bytes.Equal(named.Marshal(), key.Marshal())
	})
}

// readKey reads a private key, and the certificate beside it.
func readKey(file string) ([]ssh.Signer, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, &fileError{fmt.Errorf("identity: %w", err)}
	}
	signer, err := ssh.ParsePrivateKey(b)
	if err != nil {
		return nil, &fileError{fmt.Errorf("identity %s: %w", file, err)}
	}
	signers := []ssh.Signer{signer}
	if b, err := os.ReadFile(file + "-cert.pub"); err == nil {
		if key, _, _, _, err := ssh.ParseAuthorizedKey(b); err == nil {
			if cert, ok := key.(*ssh.Certificate); ok {
				if with, err := ssh.NewCertSigner(cert, signer); err == nil {
					signers = []ssh.Signer{with, signer}
				}
			}
		}
	}
	return signers, nil
}

// expired reports which of the keys have an expired certificate: a server does not report it.
func expired(keys []ssh.Signer) string {
	for _, key := range keys {
		if cert, ok := key.PublicKey().(*ssh.Certificate); ok &&
			cert.ValidBefore != ssh.CertTimeInfinity {
			if end := time.Unix(int64(cert.ValidBefore), 0); end.Before(time.Now()) { //nolint:gosec // as it is compared
				return fmt.Sprintf(" (its certificate expired on %s)",
					end.UTC().Format(time.RFC3339))
			}
		}
	}
	return ""
}

const (
	agentTimeout = 5 * time.Second // for a list of keys
	// For a signature, which its owner may have to allow; the login takes no longer.
	signTimeout = 15 * time.Second
)

// dialAgent connects to the agent at socket. The agent is a program of the user's, which may hang:
// requests on the connection end after d.
func dialAgent(socket string, d time.Duration) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: d}).DialContext(context.Background(), "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(d)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// agentKeys lists the keys of the agent at socket.
func agentKeys(socket string) ([]ssh.Signer, error) {
	if socket == "" {
		return nil, nil
	}
	conn, err := dialAgent(socket, agentTimeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	keys, err := agent.NewClient(conn).List()
	if err != nil {
		return nil, err
	}
	var signers []ssh.Signer
	for _, key := range keys {
		if public, err := ssh.ParsePublicKey(key.Blob); err == nil {
			signers = append(signers, agentKey{socket, public})
		}
	}
	return signers, nil
}

// agentKey signs through the agent, with a connection for each signature, because nothing reports
// the end of a login.
type agentKey struct {
	socket string
	public ssh.PublicKey
}

func (k agentKey) PublicKey() ssh.PublicKey { return k.public }

func (k agentKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	return k.SignWithAlgorithm(nil, data, "")
}

func (k agentKey) SignWithAlgorithm(_ io.Reader, data []byte, algorithm string) (*ssh.Signature,
	error) {
	conn, err := dialAgent(k.socket, signTimeout)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var flags agent.SignatureFlags
	switch algorithm {
	case ssh.KeyAlgoRSASHA256, ssh.CertAlgoRSASHA256v01:
		flags = agent.SignatureFlagRsaSha256
	case ssh.KeyAlgoRSASHA512, ssh.CertAlgoRSASHA512v01:
		flags = agent.SignatureFlagRsaSha512
	}
	return agent.NewClient(conn).SignWithFlags(k.public, data, flags)
}
